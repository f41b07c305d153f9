"""The connector's metrics on an engine's ``/metrics``, from the very definitions that the connector exposes."""

from __future__ import annotations

from connector import metrics
from dashboards.metric import Metric
from dashboards.vllm_metrics import LABELS


def _of(metric: metrics.Metric) -> Metric:
    return Metric(metric.name, metric.kind, frozenset((*LABELS, *metric.labels)))


STAGE_SECONDS = _of(metrics.STAGE_SECONDS)
TRANSFERS = _of(metrics.TRANSFERS)
TRANSFERRED_BYTES = _of(metrics.TRANSFERRED_BYTES)
DESCRIPTORS = _of(metrics.DESCRIPTORS)
RUNS = _of(metrics.RUNS)
TRANSFER_SECONDS = _of(metrics.TRANSFER_SECONDS)
REGISTRATIONS = _of(metrics.REGISTRATIONS)
RENDEZVOUS = _of(metrics.RENDEZVOUS)
RENDEZVOUS_WAIT_SECONDS = _of(metrics.RENDEZVOUS_WAIT_SECONDS)
COMPLETIONS = _of(metrics.COMPLETIONS)
COMPLETIONS_EXPECTED = _of(metrics.COMPLETIONS_EXPECTED)
LEASES_EXPIRED = _of(metrics.LEASES_EXPIRED)
BLOCKS_HELD_SECONDS = _of(metrics.BLOCKS_HELD_SECONDS)
REUSE_TOKENS = _of(metrics.REUSE_TOKENS)
BLOCKS_PINNED = _of(metrics.BLOCKS_PINNED)
BLOCKS_PINNED_LIMIT = _of(metrics.BLOCKS_PINNED_LIMIT)
TELEMETRY_LOST = _of(metrics.TELEMETRY_LOST)
TELEMETRY_ERRORS = _of(metrics.TELEMETRY_ERRORS)

DONE = "done"  # outcome of a transfer that did not fail

METRICS: tuple[Metric, ...] = tuple(value for value in dict(globals()).values() if isinstance(value, Metric))
