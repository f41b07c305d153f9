"""The benchmark runs and its figures mean what they say (how large they are is not a test's business)."""

from __future__ import annotations

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stack.store.bench import SPANS_PER_BATCH, SPANS_PER_TRACE, make_batch, run_bench
from stack.store.otlp import split


def test_batches_are_whole_distinct_traces() -> None:
    parts = [split(ExportTraceServiceRequest.FromString(make_batch(number)), 0) for number in (0, 1)]
    assert [part.spans for part in parts] == [SPANS_PER_BATCH] * 2
    assert [part.rejected for part in parts] == [0, 0]
    assert {part.spans for batch in parts for part in batch.parts.values()} == {SPANS_PER_TRACE}
    assert not set(parts[0].parts) & set(parts[1].parts)


def test_a_short_run_reports_every_figure() -> None:
    figures = run_bench(batches=2)
    assert figures["spans"] == 2 * SPANS_PER_BATCH
    assert all(value > 0 for value in figures.values())
