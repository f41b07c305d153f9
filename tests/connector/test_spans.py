from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from connector import names
from connector.bootstrap import Telemetry, start_telemetry
from connector.carrier import parse_traceparent
from connector.spans import Event, PresetIds, SpanWriter, sibling

SAMPLED = parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
UNSAMPLED = parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def writer(exporter: InMemorySpanExporter) -> Iterator[SpanWriter]:
    ids = PresetIds()
    telemetry = start_telemetry("svc", None, exporter=exporter, id_generator=ids)
    writer = SpanWriter(telemetry.tracer, ids, {names.ATTR_ENGINE_ID: "e"})
    writer.telemetry = telemetry  # type: ignore[attr-defined]
    yield writer
    telemetry.shutdown()


@pytest.fixture
def flush(writer: SpanWriter) -> Callable[[], bool]:
    telemetry: Telemetry = writer.telemetry  # type: ignore[attr-defined]
    return telemetry.flush


def test_writes_a_whole_span(writer: SpanWriter, exporter: InMemorySpanExporter, flush: Callable[[], bool]) -> None:
    assert SAMPLED is not None
    link = sibling(SAMPLED, 99)
    event = Event(names.EVENT_COMPLETION, 150, {"n": 1})
    context = writer.write("s", SAMPLED, 100, 200, {"a": 1}, span_id=42, links=[link], events=[event])
    assert context is not None
    assert (context.trace_id, context.span_id) == (SAMPLED.trace_id, 42)
    flush()
    (span,) = exporter.get_finished_spans()
    assert span.parent is not None
    assert span.parent.span_id == SAMPLED.span_id
    assert (span.start_time, span.end_time) == (100, 200)
    assert dict(span.attributes or {}) == {names.ATTR_ENGINE_ID: "e", "a": 1}
    assert [found.context.span_id for found in span.links] == [99]
    assert [(found.name, found.timestamp) for found in span.events] == [(names.EVENT_COMPLETION, 150)]
    assert span.status.status_code is StatusCode.UNSET


def test_an_error_sets_status_and_type(
    writer: SpanWriter, exporter: InMemorySpanExporter, flush: Callable[[], bool]
) -> None:
    writer.write("s", SAMPLED, 1, 2, {}, error="boom")
    flush()
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})[names.ATTR_ERROR_TYPE] == "boom"


def test_a_preset_id_serves_one_span_only(writer: SpanWriter) -> None:
    first = writer.write("s", SAMPLED, 1, 2, {}, span_id=42)
    second = writer.write("s", SAMPLED, 1, 2, {})
    assert first is not None
    assert second is not None
    assert first.span_id == 42
    assert second.span_id != 42


def test_a_preset_id_is_not_left_over_when_the_span_cannot_start(
    writer: SpanWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no span")

    with monkeypatch.context() as patch:
        patch.setattr(writer._tracer, "start_span", broken)
        with pytest.raises(RuntimeError, match="no span"):
            writer.write("s", SAMPLED, 1, 2, {}, span_id=42)
    context = writer.write("s", SAMPLED, 1, 2, {})
    assert context is not None
    assert context.span_id != 42


def test_without_a_parent_nothing_is_written(writer: SpanWriter) -> None:
    assert writer.write("s", None, 1, 2, {}) is None


def test_an_unsampled_request_writes_nothing_and_uses_up_its_preset_id(
    writer: SpanWriter, exporter: InMemorySpanExporter, flush: Callable[[], bool]
) -> None:
    writer.write("s", UNSAMPLED, 1, 2, {}, span_id=42)
    writer.write("s", SAMPLED, 1, 2, {})
    flush()
    (span,) = exporter.get_finished_spans()
    assert span.context is not None
    assert span.context.span_id != 42


def test_a_negative_duration_is_written_as_it_is(
    writer: SpanWriter, exporter: InMemorySpanExporter, flush: Callable[[], bool]
) -> None:
    writer.write("s", SAMPLED, 200, 100, {})
    flush()
    (span,) = exporter.get_finished_spans()
    assert (span.start_time, span.end_time) == (200, 100)
