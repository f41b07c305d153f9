"""Reads and writes OTLP JSON: files of the demo and of the Collector, and what Tempo's HTTP API answers.

Reading accepts what those really send: ``{"resourceSpans": [...]}`` as one document or one per line; Tempo's
``{"batches": [...]}`` and ``{"trace": {"resourceSpans": [...]}}``; ids in hex (OTLP) or base64 (Tempo); 64-bit
integers as strings or numbers; enums as numbers or names; ``scopeSpans`` or the older
``instrumentationLibrarySpans``. Writing follows the OTLP specification: hex ids, 64-bit integers as strings.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stack.analysis.trace import Attributes, AttributeValue, Event, Link, Resource, Scope, Span, Trace

_KINDS = {
    "SPAN_KIND_UNSPECIFIED": 0,
    "SPAN_KIND_INTERNAL": 1,
    "SPAN_KIND_SERVER": 2,
    "SPAN_KIND_CLIENT": 3,
    "SPAN_KIND_PRODUCER": 4,
    "SPAN_KIND_CONSUMER": 5,
}
_STATUS_CODES = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}
_HEX_LENGTHS = {"traceId": 32, "spanId": 16}
_HEX = frozenset("0123456789abcdef")


class OtlpJsonError(ValueError):
    """The text is not OTLP JSON; the message says where and what."""


# --- Reading ------------------------------------------------------------------------------------------------


def read_file(path: Path) -> list[Trace]:
    """Reads every trace of a file: one OTLP JSON document, or one per line.

    Raises ``OSError`` when the file cannot be read and :class:`OtlpJsonError` when it is not OTLP JSON.
    """
    return parse(path.read_text(encoding="utf-8"))


def parse(text: str) -> list[Trace]:
    """Parses one document, or one document per line, into traces in order of first appearance."""
    return group(span for document in _documents(text) for span in spans_of(document))


def group(spans: Iterable[Span]) -> list[Trace]:
    """Groups spans by trace id; a span that was delivered twice counts once."""
    by_trace: dict[str, dict[str, Span]] = {}
    for span in spans:
        by_trace.setdefault(span.trace_id, {}).setdefault(span.span_id, span)
    return [Trace(trace_id, tuple(members.values())) for trace_id, members in by_trace.items()]


def spans_of(document: Any) -> Iterator[Span]:
    """Yields the spans of one parsed document, in any of the accepted shapes."""
    try:
        for block in _resource_blocks(document):
            resource = Resource(_attributes((block.get("resource") or {}).get("attributes")))
            for scoped in block.get("scopeSpans") or block.get("instrumentationLibrarySpans") or ():
                scope = _scope(scoped.get("scope") or scoped.get("instrumentationLibrary"))
                for raw in scoped.get("spans") or ():
                    yield _span(raw, resource, scope)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, OtlpJsonError):
            raise
        raise OtlpJsonError(f"malformed OTLP JSON: {type(error).__name__}: {error}") from error


def _documents(text: str) -> Iterator[Any]:
    try:
        yield json.loads(text)
        return
    except json.JSONDecodeError as error:
        if "\n" not in text.strip():
            raise OtlpJsonError(f"not JSON: {error}") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise OtlpJsonError(f"line {number} is not JSON: {error}") from None


def _resource_blocks(document: Any) -> Iterable[Any]:
    if isinstance(document, Mapping):
        trace = document.get("trace")
        body = trace if isinstance(trace, Mapping) else document
        for key in ("resourceSpans", "batches"):
            if key in body:
                return body[key] or ()
        if isinstance(trace, Mapping):
            return ()
    raise OtlpJsonError('no "resourceSpans" (or Tempo\'s "batches") in the document')


def _span(raw: Mapping[str, Any], resource: Resource, scope: Scope) -> Span:
    get = raw.get
    kind = get("kind", 0)
    status = get("status")
    code, message = 0, ""
    if status:
        code, message = status.get("code", 0), status.get("message", "")
    parent = get("parentSpanId")
    events, links = get("events"), get("links")
    return Span(
        trace_id=_identifier(raw["traceId"], "traceId"),
        span_id=_identifier(raw["spanId"], "spanId"),
        parent_span_id=_identifier(parent, "spanId") if parent else "",
        name=get("name", ""),
        start_ns=int(raw["startTimeUnixNano"]),
        end_ns=int(raw["endTimeUnixNano"]),
        kind=kind if type(kind) is int else _enum(kind, _KINDS),
        attributes=_attributes(get("attributes")),
        events=tuple([_event(e) for e in events]) if events else (),
        links=tuple([_link(item) for item in links]) if links else (),
        status_code=code if type(code) is int else _enum(code, _STATUS_CODES),
        status_message=message,
        resource=resource,
        scope=scope,
        trace_state=get("traceState", ""),
        flags=int(get("flags", 0)),
    )


def _event(raw: Mapping[str, Any]) -> Event:
    return Event(raw.get("name", ""), int(raw["timeUnixNano"]), _attributes(raw.get("attributes")))


def _link(raw: Mapping[str, Any]) -> Link:
    return Link(
        trace_id=_identifier(raw["traceId"], "traceId"),
        span_id=_identifier(raw["spanId"], "spanId"),
        attributes=_attributes(raw.get("attributes")),
        trace_state=raw.get("traceState", ""),
        flags=int(raw.get("flags", 0)),
    )


def _scope(raw: Mapping[str, Any] | None) -> Scope:
    return Scope(raw.get("name", ""), raw.get("version", "")) if raw else Scope()


def _identifier(text: str, field: str) -> str:
    length = _HEX_LENGTHS[field]
    if len(text) == length:
        lowered = text.lower()
        if _HEX.issuperset(lowered):
            return lowered
    try:
        decoded = base64.b64decode(text, validate=True).hex()
    except binascii.Error:
        decoded = ""
    if len(decoded) != length:
        raise OtlpJsonError(f"{field} {text!r} is neither {length} hex digits nor base64 of {length // 2} bytes")
    return decoded


def _enum(value: Any, codes: Mapping[str, int]) -> int:
    if isinstance(value, str) and not value.isdigit():
        if value not in codes:
            raise OtlpJsonError(f"unknown enum value {value!r}")
        return codes[value]
    return int(value)


def _attributes(raw: Iterable[Any] | None) -> Attributes:
    return {item["key"]: _value(item.get("value")) for item in raw} if raw else {}


def _value(raw: Mapping[str, Any] | None) -> AttributeValue:
    if not raw:
        return None
    for kind, value in raw.items():
        if kind == "stringValue":
            return value
        if kind == "intValue":
            return int(value)
        if kind == "boolValue":
            return bool(value)
        if kind == "doubleValue":
            return float(value)  # also "NaN", "Infinity" and "-Infinity", as proto3 JSON writes them
        if kind == "arrayValue":
            return tuple(_value(item) for item in value.get("values") or ())
        if kind == "kvlistValue":
            return _attributes(value.get("values"))
        if kind == "bytesValue":
            return base64.b64decode(value)
    raise OtlpJsonError(f"unknown attribute value {sorted(raw)}")


# --- Writing ------------------------------------------------------------------------------------------------


def write_file(path: Path, traces: Iterable[Trace]) -> None:
    """Writes traces as one OTLP JSON document, whole or not at all (temporary file, then rename)."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(dumps(traces) + "\n", encoding="utf-8")
    temporary.replace(path)


def dumps(traces: Iterable[Trace]) -> str:
    """Returns traces as one OTLP JSON document; :func:`parse` of it gives the same traces back, value for value."""
    return json.dumps(document(traces), separators=(",", ":"), allow_nan=False)


def document(traces: Iterable[Trace]) -> dict[str, Any]:
    """Returns the document as plain dicts; neighbouring spans of one process share a ``resourceSpans`` entry."""
    blocks: list[dict[str, Any]] = []
    previous: tuple[Resource, Scope] | None = None
    for trace in traces:
        for span in trace.spans:
            if previous is None or span.resource != previous[0]:
                blocks.append({"resource": {"attributes": _raw_attributes(span.resource.attributes)}, "scopeSpans": []})
                previous = None
            if previous is None or span.scope != previous[1]:
                scope = {"name": span.scope.name, "version": span.scope.version}
                blocks[-1]["scopeSpans"].append({"scope": {k: v for k, v in scope.items() if v}, "spans": []})
            blocks[-1]["scopeSpans"][-1]["spans"].append(_raw_span(span))
            previous = (span.resource, span.scope)
    return {"resourceSpans": blocks}


def _raw_span(span: Span) -> dict[str, Any]:
    raw = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "traceState": span.trace_state,
        "parentSpanId": span.parent_span_id,
        "flags": span.flags,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _raw_attributes(span.attributes),
        "events": [_raw_event(event) for event in span.events],
        "links": [_raw_link(link) for link in span.links],
    }
    status = {"code": span.status_code, "message": span.status_message}
    raw["status"] = {key: value for key, value in status.items() if value}
    optional = ("traceState", "parentSpanId", "flags", "attributes", "events", "links")
    return {key: value for key, value in raw.items() if value or key not in optional}


def _raw_event(event: Event) -> dict[str, Any]:
    raw = {"timeUnixNano": str(event.time_ns), "name": event.name}
    return raw | ({"attributes": _raw_attributes(event.attributes)} if event.attributes else {})


def _raw_link(link: Link) -> dict[str, Any]:
    raw: dict[str, Any] = {"traceId": link.trace_id, "spanId": link.span_id}
    optional = {"traceState": link.trace_state, "attributes": _raw_attributes(link.attributes), "flags": link.flags}
    return raw | {key: value for key, value in optional.items() if value}


def _raw_attributes(attributes: Attributes) -> list[dict[str, Any]]:
    return [{"key": key, "value": _raw_value(value)} for key, value in attributes.items()]


def _raw_value(value: AttributeValue) -> dict[str, Any]:
    match value:
        case None:
            return {}
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": _raw_double(value)}
        case str():
            return {"stringValue": value}
        case bytes():
            return {"bytesValue": base64.b64encode(value).decode("ascii")}
        case tuple():
            return {"arrayValue": {"values": [_raw_value(item) for item in value]}}
        case _:
            return {"kvlistValue": {"values": _raw_attributes(value)}}


def _raw_double(value: float) -> float | str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value
