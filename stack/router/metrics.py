"""The router's metrics, on a registry of their own: one a process, several in tests.

They are exact whatever the sampling of traces. A failure inside is counted and never reaches a request.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from connector import names
from connector.bootstrap import SpanCounts
from stack.router.conversations.memory import Memory
from stack.router.conversations.process_memory import ProcessMemory
from stack.router.pool import EnginePool
from stack.router.spans import TelemetryErrors

# As prometheus_client takes them: on the page counters gain ``_total``, histograms ``_bucket``, ``_sum``, ``_count``.
REQUESTS = "kvpath_router_requests"  # counter by mode, status
IN_FLIGHT = "kvpath_router_requests_in_flight"  # gauge
TTFT = "kvpath_router_time_to_first_token_seconds"  # histogram by mode
DURATION = "kvpath_router_request_duration_seconds"  # histogram by mode
TPOT = "kvpath_router_time_per_output_token_seconds"  # histogram by mode
ERRORS = "kvpath_router_errors"  # counter by type
FALLBACKS = "kvpath_router_fallbacks"  # counter by reason
ENGINE_CHOSEN = "kvpath_router_engine_chosen"  # counter by engine_id, role, mode
EARLY_CHOICES = "kvpath_router_early_choices"  # counter by outcome: kept | regretted
DROPPED_PARAMS = "kvpath_router_client_transfer_params_dropped"  # counter
RETRIES = "kvpath_router_upstream_retries"  # counter
ANNOTATIONS = "kvpath_router_annotations"  # counter by outcome: written | failed
ENGINE_REQUESTS = "kvpath_router_engine_outstanding_requests"  # gauge by engine_id, role
ENGINE_WORK = "kvpath_router_engine_outstanding_work"  # gauge by engine_id, role; tokens
ENGINE_HEALTHY = "kvpath_router_engine_healthy"  # gauge by engine_id, role: 1 | 0
SPLIT_WEIGHT = "kvpath_router_split_weight"  # gauge by mode
TELEMETRY_SPANS = "kvpath_router_telemetry_spans"  # counter by outcome: ended | exported | dropped | failed
TELEMETRY_ERRORS = "kvpath_router_telemetry_errors"  # counter
REUSE_LOOKUPS = "kvpath_router_reuse_lookups"  # counter by outcome: names.REUSE_OUTCOMES
REUSE_AGE = "kvpath_router_reuse_age_seconds"  # histogram: of hits, since the turn before ended
REUSE_TOKENS = "kvpath_router_reuse_tokens"  # counter: offered to P by hits
REUSE_NOT_KEPT = "kvpath_router_reuse_not_kept"  # counter by reason: turns after which nothing can be reused
REUSE_STORE_ERRORS = "kvpath_router_reuse_store_errors"  # counter: shared memory that did not answer
CONVERSATIONS = "kvpath_router_conversations"  # gauge: entries in this process; with shared memory absent
CONVERSATIONS_BYTES = "kvpath_router_conversations_bytes"  # gauge: what these entries take
CONVERSATIONS_EVICTED = "kvpath_router_conversations_evicted"  # counter: still valid, but the table was full

_TTFT_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 60.0)
_DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
_TPOT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)

_AGE_BUCKETS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 240.0, 320.0, 400.0, 480.0)


def _swallowing(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def guarded(self: RouterMetrics, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:
            self._errors.count += 1

    return guarded


class RouterMetrics:
    """What requests report when something happened to them."""

    def __init__(self, errors: TelemetryErrors) -> None:
        self.registry = registry = CollectorRegistry()
        self._errors = errors
        self._requests = Counter(REQUESTS, "Requests answered.", ["mode", "status"], registry=registry)
        self._in_flight = Gauge(IN_FLIGHT, "Requests being served.", registry=registry)
        self._ttft = Histogram(
            TTFT,
            "Request in to first content chunk out, of streamed answers.",
            ["mode"],
            buckets=_TTFT_BUCKETS,
            registry=registry,
        )
        self._duration = Histogram(
            DURATION,
            "Request in to last byte out, streamed or not.",
            ["mode"],
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )
        self._tpot = Histogram(
            TPOT,
            "First to last token of a stream over the tokens between; counted in SSE events where usage is not sent.",
            ["mode"],
            buckets=_TPOT_BUCKETS,
            registry=registry,
        )
        self._errors_by_type = Counter(ERRORS, "Requests that failed, by type.", ["type"], registry=registry)
        self._fallbacks = Counter(FALLBACKS, "Requests served plain, by reason.", ["reason"], registry=registry)
        self._chosen = Counter(ENGINE_CHOSEN, "Choices of an engine.", ["engine_id", "role", "mode"], registry=registry)
        self._early = Counter(
            EARLY_CHOICES,
            "Push: would the choice of D have been the same when P finished (kept), or not (regretted)?",
            ["outcome"],
            registry=registry,
        )
        self._lookups = Counter(
            REUSE_LOOKUPS, "Looks at what is kept of the turn before, by outcome.", ["outcome"], registry=registry
        )
        self._reuse_age = Histogram(REUSE_AGE, "Age of what a hit found.", buckets=_AGE_BUCKETS, registry=registry)
        self._reuse_tokens = Counter(REUSE_TOKENS, "Tokens that hits offered to P.", registry=registry)
        self._not_kept = Counter(
            REUSE_NOT_KEPT,
            "Turns after which nothing can be reused, by reason.",
            ["reason"],
            registry=registry,
        )
        self._dropped_params = Counter(
            DROPPED_PARAMS,
            "Requests whose own transfer parameters were dropped.",
            registry=registry,
        )
        self._retries = Counter(
            RETRIES, "Legs sent again: the engine had closed an idle connection.", registry=registry
        )
        self._annotations = Counter(
            ANNOTATIONS, "Changes of the split, by whether they are marked in Grafana.", ["outcome"], registry=registry
        )
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Makes the series whose labels are known: no rate sees an increase from nothing to 1."""
        for outcome in ("kept", "regretted"):
            self._early.labels(outcome)
        for outcome in names.REUSE_OUTCOMES:
            self._lookups.labels(outcome)
        for outcome in ("written", "failed"):
            self._annotations.labels(outcome)

    @_swallowing
    def started(self) -> None:
        self._in_flight.inc()

    @_swallowing
    def ended(self, mode: str, status: int, duration_s: float | None, error_type: str | None) -> None:
        """``duration_s`` is ``None`` for a request that is in no latency: one of a measurement's own."""
        self._in_flight.dec()
        self._requests.labels(mode, str(status)).inc()
        if duration_s is not None:
            self._duration.labels(mode).observe(duration_s)
        if error_type is not None:
            self._errors_by_type.labels(error_type).inc()

    @_swallowing
    def first_token(self, mode: str, seconds: float, trace_id: str | None) -> None:
        self._ttft.labels(mode).observe(seconds, {"trace_id": trace_id} if trace_id else None)

    @_swallowing
    def per_token(self, mode: str, seconds: float) -> None:
        self._tpot.labels(mode).observe(seconds)

    @_swallowing
    def fell_back(self, reason: str) -> None:
        self._fallbacks.labels(reason).inc()

    @_swallowing
    def chosen(self, engine_id: str, role: str, mode: str) -> None:
        self._chosen.labels(engine_id, role, mode).inc()

    @_swallowing
    def early_choice(self, regretted: bool) -> None:
        self._early.labels("regretted" if regretted else "kept").inc()

    @_swallowing
    def dropped_client_params(self) -> None:
        self._dropped_params.inc()

    @_swallowing
    def looked_up(self, outcome: str, tokens: int, age_s: float | None) -> None:
        self._lookups.labels(outcome).inc()
        if outcome == names.REUSE_HIT and age_s is not None:
            self._reuse_tokens.inc(tokens)
            self._reuse_age.observe(age_s)

    @_swallowing
    def not_kept(self, reason: str) -> None:
        self._not_kept.labels(reason).inc()

    @_swallowing
    def retried(self) -> None:
        self._retries.inc()

    @_swallowing
    def annotated(self, written: bool) -> None:
        self._annotations.labels("written" if written else "failed").inc()


class StateCollector(Collector):
    """Reads, at scrape time, what the router knows anyway: engines, split, and the state of telemetry."""

    def __init__(
        self,
        pool: EnginePool,
        split: Callable[[], Mapping[str, float]],
        counts: Callable[[], SpanCounts],
        errors: TelemetryErrors,
    ) -> None:
        self._pool = pool
        self._split = split
        self._counts = counts
        self._errors = errors

    def collect(self) -> Iterable[Metric]:
        labels = ["engine_id", "role"]
        requests = GaugeMetricFamily(ENGINE_REQUESTS, "Legs in flight.", labels=labels)
        work = GaugeMetricFamily(ENGINE_WORK, "Outstanding work, tokens.", labels=labels)
        healthy = GaugeMetricFamily(ENGINE_HEALTHY, "1 when requests may go there.", labels=labels)
        for engine in self._pool.engines:
            values = [engine.engine_id, engine.settings.role]
            requests.add_metric(values, engine.requests)
            work.add_metric(values, engine.work)
            healthy.add_metric(values, float(engine.healthy))
        split = GaugeMetricFamily(SPLIT_WEIGHT, "Weight of a mode in the split.", labels=["mode"])
        for mode, weight in self._split().items():
            split.add_metric([mode], weight)
        yield from (requests, work, healthy, split)
        yield from self._telemetry()

    def _telemetry(self) -> Iterable[Metric]:
        counts = self._counts()
        spans = CounterMetricFamily(TELEMETRY_SPANS, "Sampled spans, by what became of them.", labels=["outcome"])
        for outcome in ("ended", "exported", "dropped", "failed"):
            spans.add_metric([outcome], getattr(counts, outcome))
        yield spans
        yield CounterMetricFamily(
            TELEMETRY_ERRORS, "Exceptions inside telemetry that were swallowed.", value=self._errors.count
        )


class MemoryCollector(Collector):
    """Reads, at scrape time, the size of the router's memory of conversations, or how often shared memory failed."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def collect(self) -> Iterable[Metric]:
        memory = self._memory
        yield CounterMetricFamily(
            REUSE_STORE_ERRORS, "Failures of the shared memory of conversations.", value=memory.errors
        )
        if isinstance(memory, ProcessMemory):
            yield GaugeMetricFamily(CONVERSATIONS, "Conversations remembered in this process.", value=len(memory))
            yield GaugeMetricFamily(CONVERSATIONS_BYTES, "What they take.", value=memory.size)
            yield CounterMetricFamily(
                CONVERSATIONS_EVICTED, "Conversations given up early: the table was full.", value=memory.evicted
            )
