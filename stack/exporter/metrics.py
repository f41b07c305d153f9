"""What Prometheus reads from the exporter: histograms with exemplars that lead to traces, counters, a few gauges.

Every stage of every counted request is observed, zeros too, so that all stages of a mode have one count and their sums
add up to the sum of TTFT. Exemplars appear in the OpenMetrics format only.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from connector import names
from connector.stages import STAGE_NAMES, UNEXPLAINED
from stack.analysis.compare import stage_time
from stack.analysis.critical_path import CriticalPath
from stack.exporter.difference import Difference
from stack.exporter.judge import Judged

EXEMPLAR_TRACE_ID = "trace_id"
BOUND_MEDIAN, BOUND_LOW, BOUND_HIGH = "median", "low", "high"

_STAGE_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_TTFT_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 60.0)
_CLOCK_SECONDS = (0.0, 0.00001, 0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 1.0)


class ExporterMetrics:
    """One registry a process, several in tests. :meth:`count` from the polling thread."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def histogram(name: str, text: str, labels: list[str], buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        self._stages = histogram(
            names.METRIC_EXPORTER_CRITICAL_PATH,
            "Time of one stage on the critical path of TTFT; the stages and unexplained add up to it.",
            ["mode", "stage"],
            _STAGE_SECONDS,
        )
        self._ttft = histogram(
            names.METRIC_EXPORTER_TTFT, "Request in to first token out, from traces.", ["mode"], _TTFT_SECONDS
        )
        self._overlapped = histogram(
            names.METRIC_EXPORTER_OVERLAPPED,
            "Work that ran beside the critical path, hidden behind prefill.",
            ["mode"],
            _STAGE_SECONDS,
        )
        self._clock = histogram(
            names.METRIC_EXPORTER_CLOCK,
            "Bound on the error of stages that span two hosts; 0 on one clock.",
            ["mode"],
            _CLOCK_SECONDS,
        )
        self._traces = Counter(
            names.METRIC_EXPORTER_TRACES,
            "Finished requests, by outcome; uncounted, not streamed and not transferred ones have no figures.",
            ["mode", "outcome"],
            registry=registry,
        )
        self._incomplete = Counter(
            names.METRIC_EXPORTER_INCOMPLETE,
            "What counted requests lacked, by reason; a request may have several.",
            ["reason"],
            registry=registry,
        )
        self.lag = Gauge(
            names.METRIC_EXPORTER_LAG,
            "Now less the instant up to which every finished request has been counted.",
            registry=registry,
        )
        self.waiting = Gauge(names.METRIC_EXPORTER_WAITING, "Traces found that are not counted yet.", registry=registry)
        self.poll_errors = Counter(
            names.METRIC_EXPORTER_POLL_ERRORS, "Polls, or single traces in them, that failed.", registry=registry
        )
        self._difference = Gauge(
            names.METRIC_EXPORTER_DIFFERENCE,
            "Median TTFT of push less that of pull over the sliding window, and its 95 % interval.",
            ["bound"],
            registry=registry,
        )
        self._samples = Gauge(
            names.METRIC_EXPORTER_SAMPLES,
            "Requests in the sliding window, at most as many as the difference looks at.",
            ["mode"],
            registry=registry,
        )

    def count(self, judged: Judged) -> None:
        """Adds one trace."""
        self._traces.labels(judged.mode, judged.outcome).inc()
        for reason in judged.reasons:
            self._incomplete.labels(reason).inc()
        if judged.path is not None:
            self._observe(judged.mode, judged.path)

    def _observe(self, mode: str, path: CriticalPath) -> None:
        exemplar = {EXEMPLAR_TRACE_ID: path.trace_id}
        for stage in (*STAGE_NAMES, UNEXPLAINED):
            nanoseconds = stage_time(path, stage)
            # A stage that the mode does not have leads nowhere.
            self._stages.labels(mode, stage).observe(nanoseconds / 1e9, exemplar if nanoseconds else None)
        self._ttft.labels(mode).observe(path.ttft_ns / 1e9, exemplar)
        self._overlapped.labels(mode).observe(path.overlapped_total_ns / 1e9, exemplar)
        if path.clock_uncertainty_ns is not None:
            self._clock.labels(mode).observe(path.clock_uncertainty_ns / 1e9, exemplar)

    def compared(self, difference: Difference | None, samples: Mapping[str, int]) -> None:
        """Sets the verdict figures; without a difference its series disappear rather than grow old."""
        for mode, number in samples.items():
            self._samples.labels(mode).set(number)
        if difference is None:
            self._difference.clear()
            return
        self._difference.labels(BOUND_MEDIAN).set(difference.median)
        self._difference.labels(BOUND_LOW).set(difference.low)
        self._difference.labels(BOUND_HIGH).set(difference.high)
