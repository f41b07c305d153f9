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

from connector.bootstrap import SpanCounts
from stack.router.pool import EnginePool
from stack.router.spans import TelemetryErrors

_TTFT_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 60.0)
_DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
_TPOT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)


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
        p = "kvpath_router_"
        self._requests = Counter(f"{p}requests", "Requests answered.", ["mode", "status"], registry=registry)
        self._in_flight = Gauge(f"{p}requests_in_flight", "Requests being served.", registry=registry)
        self._ttft = Histogram(
            f"{p}time_to_first_token_seconds",
            "Request in to first content chunk out.",
            ["mode"],
            buckets=_TTFT_BUCKETS,
            registry=registry,
        )
        self._duration = Histogram(
            f"{p}request_duration_seconds",
            "Request in to last byte out.",
            ["mode"],
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )
        self._tpot = Histogram(
            f"{p}time_per_output_token_seconds",
            "First to last token over the tokens between; counted in SSE events when the engine sent no usage.",
            ["mode"],
            buckets=_TPOT_BUCKETS,
            registry=registry,
        )
        self._errors_by_type = Counter(f"{p}errors", "Requests that failed, by type.", ["type"], registry=registry)
        self._fallbacks = Counter(f"{p}fallbacks", "Requests served plain, by reason.", ["reason"], registry=registry)
        self._chosen = Counter(
            f"{p}engine_chosen", "Choices of an engine.", ["engine_id", "role", "mode"], registry=registry
        )
        self._early = Counter(
            f"{p}early_choices",
            "Push: would the choice of D have been the same when P finished (kept), or not (regretted)?",
            ["outcome"],
            registry=registry,
        )
        self._dropped_params = Counter(
            f"{p}client_transfer_params_dropped",
            "Requests whose own transfer parameters were dropped.",
            registry=registry,
        )
        self._retries = Counter(
            f"{p}upstream_retries", "Legs sent again: the engine had closed an idle connection.", registry=registry
        )

    @_swallowing
    def started(self) -> None:
        self._in_flight.inc()

    @_swallowing
    def ended(self, mode: str, status: int, duration_s: float, error_type: str | None) -> None:
        self._in_flight.dec()
        self._requests.labels(mode, str(status)).inc()
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
    def retried(self) -> None:
        self._retries.inc()


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
        p = "kvpath_router_"
        labels = ["engine_id", "role"]
        requests = GaugeMetricFamily(f"{p}engine_outstanding_requests", "Legs in flight.", labels=labels)
        work = GaugeMetricFamily(f"{p}engine_outstanding_work", "Outstanding work, tokens.", labels=labels)
        healthy = GaugeMetricFamily(f"{p}engine_healthy", "1 when requests may go there.", labels=labels)
        for engine in self._pool.engines:
            values = [engine.engine_id, engine.settings.role]
            requests.add_metric(values, engine.requests)
            work.add_metric(values, engine.work)
            healthy.add_metric(values, float(engine.healthy))
        split = GaugeMetricFamily(f"{p}split_weight", "Weight of a mode in the split.", labels=["mode"])
        for mode, weight in self._split().items():
            split.add_metric([mode], weight)
        yield from (requests, work, healthy, split)
        yield from self._telemetry(p)

    def _telemetry(self, p: str) -> Iterable[Metric]:
        counts = self._counts()
        spans = CounterMetricFamily(f"{p}telemetry_spans", "Sampled spans, by what became of them.", labels=["outcome"])
        for outcome in ("ended", "exported", "dropped", "failed"):
            spans.add_metric([outcome], getattr(counts, outcome))
        yield spans
        yield CounterMetricFamily(
            f"{p}telemetry_errors", "Exceptions inside telemetry that were swallowed.", value=self._errors.count
        )
