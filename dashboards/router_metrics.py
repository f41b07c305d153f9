"""The router's metrics with their kinds and labels; the names are :mod:`stack.router.metrics`'s own.

A test scrapes a router and compares, so that a label renamed there is not missed here.
"""

from __future__ import annotations

from dashboards.metric import Metric, counter, gauge, histogram
from stack.router import metrics

REQUESTS = counter(metrics.REQUESTS, ("mode", "status"))
IN_FLIGHT = gauge(metrics.IN_FLIGHT)
TTFT = histogram(metrics.TTFT, ("mode",))
DURATION = histogram(metrics.DURATION, ("mode",))
TPOT = histogram(metrics.TPOT, ("mode",))
ERRORS = counter(metrics.ERRORS, ("type",))
FALLBACKS = counter(metrics.FALLBACKS, ("reason",))
ENGINE_CHOSEN = counter(metrics.ENGINE_CHOSEN, ("engine_id", "role", "mode"))
EARLY_CHOICES = counter(metrics.EARLY_CHOICES, ("outcome",))
DROPPED_PARAMS = counter(metrics.DROPPED_PARAMS)
RETRIES = counter(metrics.RETRIES)
ANNOTATIONS = counter(metrics.ANNOTATIONS, ("outcome",))
ENGINE_REQUESTS = gauge(metrics.ENGINE_REQUESTS, ("engine_id", "role"))
ENGINE_WORK = gauge(metrics.ENGINE_WORK, ("engine_id", "role"))
ENGINE_HEALTHY = gauge(metrics.ENGINE_HEALTHY, ("engine_id", "role"))
SPLIT_WEIGHT = gauge(metrics.SPLIT_WEIGHT, ("mode",))
TELEMETRY_SPANS = counter(metrics.TELEMETRY_SPANS, ("outcome",))
TELEMETRY_ERRORS = counter(metrics.TELEMETRY_ERRORS)
REUSE_LOOKUPS = counter(metrics.REUSE_LOOKUPS, ("outcome",))
REUSE_AGE = histogram(metrics.REUSE_AGE)
REUSE_TOKENS = counter(metrics.REUSE_TOKENS)
REUSE_NOT_KEPT = counter(metrics.REUSE_NOT_KEPT, ("reason",))
REUSE_STORE_ERRORS = counter(metrics.REUSE_STORE_ERRORS)
CONVERSATIONS = gauge(metrics.CONVERSATIONS)
CONVERSATIONS_BYTES = gauge(metrics.CONVERSATIONS_BYTES)
CONVERSATIONS_EVICTED = counter(metrics.CONVERSATIONS_EVICTED)

REGRETTED = "regretted"  # outcome of an early choice
FAILED = "failed"  # outcome of spans and annotations
DROPPED = "dropped"  # outcome of spans

METRICS: tuple[Metric, ...] = tuple(value for value in dict(globals()).values() if isinstance(value, Metric))
