"""Writes finished spans from known instants. Owned by the drain thread: not safe to use from two threads.

A span is written once, whole, with its start and end; no span object ever lives on an engine thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)

from connector import names
from connector.bootstrap import SystemIds

_NO_CONTEXT = Context()


class PresetIds(SystemIds):
    """Random ids, except for the one span id that :class:`SpanWriter` sets just before it starts a span."""

    def __init__(self) -> None:
        self.next_span_id: int | None = None

    def generate_span_id(self) -> int:
        preset, self.next_span_id = self.next_span_id, None
        return preset if preset is not None else super().generate_span_id()


@dataclass(frozen=True, slots=True)
class Event:
    """A span event: ``at_ns`` in Unix nanoseconds."""

    name: str
    at_ns: int
    attributes: Mapping[str, Any]


class SpanWriter:
    """Writes spans with the attributes that all spans of one engine process share."""

    def __init__(self, tracer: Tracer, ids: PresetIds, common: Mapping[str, Any]) -> None:
        self._tracer = tracer
        self._ids = ids
        self._common = dict(common)

    def write(
        self,
        name: str,
        parent: SpanContext | None,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Any],
        *,
        span_id: int | None = None,
        links: Iterable[SpanContext] = (),
        events: Sequence[Event] = (),
        error: str | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> SpanContext | None:
        """Writes one span (times in Unix ns) under ``parent``; returns its context, ``None`` when not traced.

        A negative duration is written as it is: analysis must see a clock fault, not a repaired value.
        """
        if parent is None:
            return None
        self._ids.next_span_id = span_id
        try:
            span = self._tracer.start_span(
                name,
                context=set_span_in_context(NonRecordingSpan(parent), _NO_CONTEXT),
                kind=kind,
                attributes={**self._common, **attributes},
                links=[Link(context) for context in links],
                start_time=start_ns,
            )
        finally:
            self._ids.next_span_id = None
        for event in events:
            span.add_event(event.name, event.attributes, event.at_ns)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
            span.set_attribute(names.ATTR_ERROR_TYPE, error)
        span.end(end_ns)
        return span.get_span_context()


def sibling(parent: SpanContext, span_id: int) -> SpanContext:
    """The context of a span of the same trace whose id is known."""
    return SpanContext(parent.trace_id, span_id, True, parent.trace_flags)
