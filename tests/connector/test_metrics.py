from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from connector import metrics, names
from connector.bootstrap import SpanCounts
from connector.ledger import Losses
from connector.metrics import EngineMetrics, Samples
from connector.stages import STAGES


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def engine_metrics(registry: CollectorRegistry) -> EngineMetrics:
    def bound(metric_class: Any) -> Any:
        return lambda **arguments: metric_class(registry=registry, **arguments)

    classes = {"counter": bound(Counter), "gauge": bound(Gauge), "histogram": bound(Histogram)}
    return EngineMetrics(classes, ["model_name", "engine"], {0: ["m", 0], 1: ["m", 1]})


def test_samples_are_plain_lists_and_are_taken_once() -> None:
    samples = Samples()
    samples.add(metrics.TRANSFERS, 1, "push", "WRITE", "done")
    assert samples.take() == [["kvpath_transfers", 1, "push", "WRITE", "done"]]
    assert samples.take() == []


def test_what_nobody_takes_is_bounded_and_counted() -> None:
    samples = Samples(capacity=2)
    for _ in range(5):
        samples.add(metrics.TELEMETRY_ERRORS, 1)
    samples.report_losses(Losses(errors=1), SpanCounts())
    assert samples.refused == 5, "three samples, and the report of the error and of the refusals"
    assert len(samples.take()) == 2
    samples.report_losses(Losses(errors=1), SpanCounts())
    taken = samples.take()
    assert ["kvpath_telemetry_lost", samples.refused, "samples_refused"] in taken
    assert ["kvpath_telemetry_errors", 1] in taken, "a report that found no room is made again"


def test_losses_are_reported_as_growth() -> None:
    samples, losses = Samples(), Losses(errors=1, dropped=2, evicted=3, unmatched=4)
    samples.report_losses(losses, SpanCounts(ended=20, dropped=5, failed=6))
    first = {(name, *labels): value for name, value, *labels in samples.take()}
    assert first == {
        ("kvpath_telemetry_lost", "facts_dropped"): 2,
        ("kvpath_telemetry_lost", "evicted"): 3,
        ("kvpath_telemetry_lost", "unmatched"): 4,
        ("kvpath_telemetry_lost", "spans_dropped"): 5,
        ("kvpath_telemetry_lost", "spans_failed"): 6,
        ("kvpath_telemetry_errors",): 1,
    }
    samples.report_losses(losses, SpanCounts(ended=20, dropped=5, failed=6))
    assert samples.take() == []
    losses.errors += 2
    samples.report_losses(losses, SpanCounts(ended=20, dropped=5, failed=6))
    assert samples.take() == [["kvpath_telemetry_errors", 2]]


@pytest.mark.parametrize("metric", metrics.METRICS, ids=lambda metric: metric.name)
def test_every_metric_can_be_observed_and_is_exposed(
    metric: metrics.Metric, engine_metrics: EngineMetrics, registry: CollectorRegistry
) -> None:
    labels = [f"v{index}" for index in range(len(metric.labels))]
    engine_metrics.observe([[metric.name, 2, *labels]], 1)
    text = generate_latest(registry).decode()
    suffix = {"counter": "_total", "gauge": "", "histogram": "_sum"}[metric.kind]
    wanted = ",".join(
        [
            *('engine="1"', *(f'{label}="{value}"' for label, value in zip(metric.labels, labels, strict=True))),
            'model_name="m"',
        ]
    )
    start = f"{metric.name}{suffix}{{"
    line = next(
        line for line in text.splitlines() if line.startswith(start) and all(pair in line for pair in wanted.split(","))
    )
    name, _, value = line.rpartition(" ")
    assert float(value) == 2
    assert sorted(name[name.index("{") + 1 : -1].split(",")) == sorted(wanted.split(","))


def test_what_is_known_beforehand_begins_at_zero_on_every_engine(
    engine_metrics: EngineMetrics, registry: CollectorRegistry
) -> None:
    """A rate sees no increase in a series that begins at 1."""

    def begins(metric: metrics.Metric, **labels: str) -> bool:
        each_engine = ({"model_name": "m", "engine": engine, **labels} for engine in ("0", "1"))
        return all(registry.get_sample_value(f"{metric.name}_total", labels) == 0 for labels in each_engine)

    for mode in names.TRANSFER_MODES:
        assert begins(metrics.LEASES_EXPIRED, mode=mode)
        operation = names.OPERATION_WRITE if mode == names.MODE_PUSH else names.OPERATION_READ
        assert begins(metrics.TRANSFERS, mode=mode, operation=operation, outcome="done")
        for metric in (metrics.TRANSFERRED_BYTES, metrics.DESCRIPTORS, metrics.RUNS, metrics.TRANSFER_SECONDS):
            assert begins(metric, mode=mode, operation=operation)
    for kind in metrics.LOSS_KINDS:
        assert begins(metrics.TELEMETRY_LOST, kind=kind)
    assert begins(metrics.TELEMETRY_ERRORS)
    assert begins(metrics.REGISTRATIONS, direction="sent")
    assert begins(metrics.REGISTRATIONS, direction="received")
    assert begins(metrics.RENDEZVOUS, last_arrival=names.LAST_ARRIVAL_REGISTRATION)
    assert begins(metrics.RENDEZVOUS, last_arrival=names.LAST_ARRIVAL_PREFILL)
    assert begins(metrics.REUSE_TOKENS, outcome="reused")
    assert begins(metrics.REUSE_TOKENS, outcome="recomputed")


def test_a_gauge_shows_the_latest_value(engine_metrics: EngineMetrics, registry: CollectorRegistry) -> None:
    engine_metrics.observe([[metrics.BLOCKS_PINNED.name, 7], [metrics.BLOCKS_PINNED.name, 3]], 0)
    assert 'kvpath_blocks_pinned{engine="0",model_name="m"} 3.0' in generate_latest(registry).decode()


def test_an_unknown_metric_is_a_key_error(engine_metrics: EngineMetrics) -> None:
    with pytest.raises(KeyError):
        engine_metrics.observe([["kvpath_of_the_future", 1]], 0)


def test_metric_names_are_unique_and_ours() -> None:
    all_names = [metric.name for metric in metrics.METRICS]
    assert len(set(all_names)) == len(all_names)
    assert all(name.startswith("kvpath_") for name in all_names)
    assert all(metric.buckets for metric in metrics.METRICS if metric.kind == "histogram")


def test_the_stages_an_engine_sees_are_those_of_the_definition() -> None:
    seen = {stage.name for stage in STAGES if stage.engine_metric}
    transfer = {"handshake", "prepare", "submit", "flight"}
    assert seen == {"prefill_queue", "prefill", "first_step", *transfer, *(f"reuse_{name}" for name in transfer)}
    assert names.MODE_PUSH in names.TRANSFER_MODES
