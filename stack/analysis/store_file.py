"""Traces from the embedded store's SQLite file: stored protobuf into the analysis' model, without JSON between.

The file is only read. That of a store which runs may be read meanwhile; one without a write-ahead log beside it has no
writer, and is opened as such, so that it may lie where nothing can be written.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from connector import names
from stack.analysis.trace import Attributes, AttributeValue, Event, Link, Resource, Scope, Span, Trace
from stack.store import reader

_MAGIC = b"SQLite format 3\0"
ALL = 2**62


def is_store_file(path: Path) -> bool:
    """Whether ``path`` is a SQLite file; raises ``OSError`` when it cannot be read."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_store(path: Path, limit: int | None = None) -> list[Trace]:
    """Returns the newest traces of requests, newest first, all unless ``limit``; raises the store's StorageError."""
    found = [load(path, trace_id) for trace_id, _ in reader.newest(path, names.SERVICE_ROUTER, limit or ALL)]
    return [trace for trace in found if trace is not None]


def load(path: Path, trace_id: bytes) -> Trace | None:
    """Returns one trace, of whatever service; ``None`` when the file does not have it. Raises StorageError."""
    stored = reader.load(path, trace_id)
    return None if stored is None else Trace(trace_id.hex(), tuple(spans_of(stored)))


def spans_of(stored: trace_pb2.TracesData) -> Iterable[Span]:
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
