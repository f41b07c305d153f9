"""The store's own traces, read from its SQLite file: stored protobuf into the analysis' model, without JSON between."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from connector import names
from stack.analysis.trace import Attributes, AttributeValue, Event, Link, Resource, Scope, Span, Trace
from stack.store import reader
from stack.view.feed import DEFAULT_LIMIT, Listing


class StoreFeed:
    """The newest traces of the store that this process serves. Raises the store's StorageError."""

    def __init__(self, path: Path, limit: int = DEFAULT_LIMIT) -> None:
        self.name = f"this trace store ({path.name})"
        self.empty = "No request has been traced yet."
        self._path, self._limit = path, limit

    def newest(self) -> Listing:
        found = reader.newest(self._path, names.SERVICE_ROUTER, self._limit)
        return [(trace_id.hex(), version) for trace_id, version in found]

    def load(self, trace_id: str) -> Trace | None:
        stored = reader.load(self._path, bytes.fromhex(trace_id))
        return None if stored is None else Trace(trace_id, tuple(_spans(stored)))


def _spans(stored: trace_pb2.TracesData) -> Iterable[Span]:
    for block in stored.resource_spans:
        resource = Resource(_attributes(block.resource.attributes))
        for scoped in block.scope_spans:
            scope = Scope(scoped.scope.name, scoped.scope.version)
            for span in scoped.spans:
                yield _span(span, resource, scope)


def _span(raw: trace_pb2.Span, resource: Resource, scope: Scope) -> Span:
    return Span(
        trace_id=raw.trace_id.hex(),
        span_id=raw.span_id.hex(),
        parent_span_id=raw.parent_span_id.hex(),
        name=raw.name,
        start_ns=raw.start_time_unix_nano,
        end_ns=raw.end_time_unix_nano,
        kind=raw.kind,
        attributes=_attributes(raw.attributes),
        events=tuple(Event(e.name, e.time_unix_nano, _attributes(e.attributes)) for e in raw.events),
        links=tuple(
            Link(link.trace_id.hex(), link.span_id.hex(), _attributes(link.attributes), link.trace_state, link.flags)
            for link in raw.links
        ),
        status_code=raw.status.code,
        status_message=raw.status.message,
        resource=resource,
        scope=scope,
        trace_state=raw.trace_state,
        flags=raw.flags,
    )


def _attributes(raw: Iterable[KeyValue]) -> Attributes:
    return {item.key: _value(item.value) for item in raw}


def _value(raw: AnyValue) -> AttributeValue:
    kind = raw.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return tuple(_value(item) for item in raw.array_value.values)
    if kind == "kvlist_value":
        return _attributes(raw.kvlist_value.values)
    return getattr(raw, kind)
