"""Metrics of an engine process, from the same stage definitions as the spans.

The drain thread adds *samples*; the engine picks them up with its own statistics (``get_kv_connector_stats``), ships
them to its API server, and :class:`EngineMetrics` observes them there, so that they appear on the engine's own
``/metrics``. A sample is a plain list, because it crosses process borders: ``[metric, value, *label values]``.
vLLM ships statistics with scheduler steps: on an idle engine the last samples appear with the next request.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from connector import names
from connector.bootstrap import SpanCounts
from connector.ledger import Losses

Sample = list[Any]
SAMPLES_KEY = "kvpath_samples"
MAX_WAITING_SAMPLES = 100_000

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_HELD_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 480.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's name on ``/metrics`` (counters gain ``_total`` there), kind, help, labels and buckets.

    Of a counter, ``from_zero`` has the label values that are known beforehand: their series are there from the start,
    because no rate sees the event with which a series begins.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    from_zero: tuple[tuple[str, ...], ...] = ()


_EACH_MODE = tuple((mode,) for mode in names.TRANSFER_MODES)
_EACH_OPERATION = (
    (names.MODE_PUSH, names.OPERATION_WRITE),
    (names.MODE_PULL, names.OPERATION_READ),
    (names.MODE_REUSE, names.OPERATION_READ),
)
STAGE_SECONDS = Metric(
    "kvpath_stage_seconds", "histogram", "Time of one stage of a KV transfer, by mode.", ("mode", "stage"), _SECONDS
)
TRANSFERS = Metric(
    "kvpath_transfers",
    "counter",
    "KV transfers that ended, by outcome (done or the error's type).",
    ("mode", "operation", "outcome"),
    from_zero=tuple((*operation, "done") for operation in _EACH_OPERATION),
)
TRANSFERRED_BYTES = Metric(
    "kvpath_transferred_bytes",
    "counter",
    "Bytes of KV cache transferred.",
    ("mode", "operation"),
    from_zero=_EACH_OPERATION,
)
DESCRIPTORS = Metric(
    "kvpath_transfer_descriptors",
    "counter",
    "Descriptors handed to NIXL for transfers.",
    ("mode", "operation"),
    from_zero=_EACH_OPERATION,
)
RUNS = Metric(
    "kvpath_transfer_contiguous_runs",
    "counter",
    "Runs of descriptors adjacent on both sides; far fewer than descriptors means the blocks were contiguous.",
    ("mode", "operation"),
    from_zero=_EACH_OPERATION,
)
TRANSFER_SECONDS = Metric(
    "kvpath_transfer_seconds",
    "counter",
    "Submit and flight, summed over transfers.",
    ("mode", "operation"),
    from_zero=_EACH_OPERATION,
)
REGISTRATIONS = Metric(
    "kvpath_registrations",
    "counter",
    "Push registrations, sent by D and received by P.",
    ("direction",),
    from_zero=(("sent",), ("received",)),
)
RENDEZVOUS = Metric(
    "kvpath_rendezvous",
    "counter",
    "Registrations matched with prefills, by what came last.",
    ("last_arrival",),
    from_zero=((names.LAST_ARRIVAL_REGISTRATION,), (names.LAST_ARRIVAL_PREFILL,)),
)
RENDEZVOUS_WAIT_SECONDS = Metric(
    "kvpath_rendezvous_wait_seconds",
    "histogram",
    "Time between the two arrivals of a rendezvous.",
    ("last_arrival",),
    _SECONDS,
)
COMPLETIONS = Metric(
    "kvpath_completions", "counter", "Completion notifications counted by D.", ("mode",), from_zero=_EACH_MODE
)
COMPLETIONS_EXPECTED = Metric(
    "kvpath_completions_expected",
    "counter",
    "Completions that D expected for finished transfers.",
    ("mode",),
    from_zero=_EACH_MODE,
)
LEASES_EXPIRED = Metric(
    "kvpath_leases_expired", "counter", "KV blocks of P released by an expired lease.", ("mode",), from_zero=_EACH_MODE
)
BLOCKS_HELD_SECONDS = Metric(
    "kvpath_blocks_held_seconds",
    "histogram",
    "Time an engine held a request's KV blocks after it finished, by why it let go; D only in mode reuse.",
    ("mode", "reason"),
    _HELD_SECONDS,
)
REUSE_TOKENS = Metric(
    "kvpath_reuse_tokens",
    "counter",
    "Prompt tokens of requests of mode reuse on P: reused (KV read from D) or recomputed; P's own cache is neither.",
    ("outcome",),
    from_zero=(("reused",), ("recomputed",)),
)
BLOCKS_PINNED = Metric("kvpath_blocks_pinned", "gauge", "Blocks that D keeps of finished requests, for mode reuse.")
BLOCKS_PINNED_LIMIT = Metric("kvpath_blocks_pinned_limit", "gauge", "Blocks that D may keep at most, for mode reuse.")
LOSS_KINDS = ("facts_dropped", "evicted", "unmatched", "spans_dropped", "spans_failed", "samples_refused")
TELEMETRY_LOST = Metric(
    "kvpath_telemetry_lost",
    "counter",
    "What telemetry lost: facts dropped, requests evicted, facts unmatched, spans dropped or failed in export.",
    ("kind",),
    from_zero=tuple((kind,) for kind in LOSS_KINDS),
)
TELEMETRY_ERRORS = Metric(
    "kvpath_telemetry_errors",
    "counter",
    "Exceptions inside telemetry that were swallowed; serving went on.",
    from_zero=((),),
)
METRICS: tuple[Metric, ...] = (
    STAGE_SECONDS,
    TRANSFERS,
    TRANSFERRED_BYTES,
    DESCRIPTORS,
    RUNS,
    TRANSFER_SECONDS,
    REGISTRATIONS,
    RENDEZVOUS,
    RENDEZVOUS_WAIT_SECONDS,
    COMPLETIONS,
    COMPLETIONS_EXPECTED,
    LEASES_EXPIRED,
    BLOCKS_HELD_SECONDS,
    REUSE_TOKENS,
    BLOCKS_PINNED,
    BLOCKS_PINNED_LIMIT,
    TELEMETRY_LOST,
    TELEMETRY_ERRORS,
)


class Samples:
    """Samples that wait for the engine to pick them up. Added by the drain thread, taken by an engine thread.

    Every step asks, so ``waiting`` may be looked at before :meth:`take` is called.
    """

    def __init__(self, capacity: int = MAX_WAITING_SAMPLES) -> None:
        self._lock = threading.Lock()
        self.waiting: list[Sample] = []
        self._capacity = capacity
        self._reported: dict[str, int] = {}
        self.refused = 0

    def add(self, metric: Metric, value: float, *label_values: str) -> bool:
        """Adds one sample; returns whether there was room for it."""
        with self._lock:
            room = len(self.waiting) < self._capacity
            if room:
                self.waiting.append([metric.name, value, *label_values])
            else:
                self.refused += 1
            return room

    def take(self) -> list[Sample]:
        """Returns and clears what waits."""
        if not self.waiting:
            return []
        with self._lock:
            taken, self.waiting = self.waiting, []
        return taken

    def report_losses(self, losses: Losses, spans: SpanCounts) -> None:
        """Adds what the process-wide counts grew by since the last call."""
        spans_lost = (spans.dropped, spans.failed)
        totals = (losses.dropped, losses.evicted, losses.unmatched, *spans_lost, self.refused)
        for kind, total in zip(LOSS_KINDS, totals, strict=True):
            self._report_growth(TELEMETRY_LOST, kind, total, kind)
        self._report_growth(TELEMETRY_ERRORS, "errors", losses.errors)

    def _report_growth(self, metric: Metric, key: str, total: int, *label_values: str) -> None:
        grown = total - self._reported.get(key, 0)
        if grown > 0 and self.add(metric, grown, *label_values):
            self._reported[key] = total


class EngineMetrics:
    """Observes samples in the engine's API server.

    ``metric_classes`` maps ``"counter"``, ``"gauge"`` and ``"histogram"`` to the classes that vLLM hands to its
    connectors (prometheus_client's own, or wrappers with the same constructor). ``base_labels`` and
    ``values_by_engine`` are vLLM's labels of every metric (model and engine index).
    """

    def __init__(
        self,
        metric_classes: Mapping[str, Any],
        base_labels: Sequence[str],
        values_by_engine: Mapping[int, Sequence[object]],
    ) -> None:
        self._values_by_engine = values_by_engine
        self._metrics: dict[str, tuple[Metric, Any]] = {}
        for metric in METRICS:
            extra: dict[str, Any] = {"buckets": list(metric.buckets)} if metric.kind == "histogram" else {}
            if metric.kind == "gauge":
                extra["multiprocess_mode"] = "mostrecent"  # of several API servers, as vLLM's own gauges
            self._metrics[metric.name] = (
                metric,
                metric_classes[metric.kind](
                    name=metric.name,
                    documentation=metric.help,
                    labelnames=[*base_labels, *metric.labels],
                    **extra,
                ),
            )
        for metric, family in self._metrics.values():
            for label_values in metric.from_zero:
                for engine in values_by_engine.values():
                    family.labels(*map(str, engine), *label_values)

    def observe(self, samples: Sequence[Sample], engine_index: int) -> None:
        """Adds ``samples`` of one engine; raises ``KeyError`` for a metric that is not in :data:`METRICS`."""
        base = [str(value) for value in self._values_by_engine[engine_index]]
        for name, value, *label_values in samples:
            metric, family = self._metrics[name]
            child = family.labels(*base, *label_values)
            if metric.kind == "histogram":
                child.observe(value)
            elif metric.kind == "gauge":
                child.set(value)
            else:
                child.inc(value)
