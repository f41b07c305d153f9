"""OTLP/HTTP requests into traces: decompress, parse, validate, and split by trace.

A request mixes the spans of many traces. The store keeps one blob per request and trace, still OTLP protobuf, and
beside it only what search needs; everything else is decoded when somebody reads it. Runs on worker threads.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status, TracesData

from connector import names
from stack.store.errors import BadRequestError, BodyTooLargeError, UnsupportedMediaTypeError
from stack.store.otlp_json import ids_from_hex

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

TERM_NAME = "name"
TERM_STATUS = "status"
SERVICE_NAME = "service.name"
INDEXED_ATTRIBUTES = frozenset({SERVICE_NAME, names.ATTR_MODE, names.ATTR_REQUEST_ID})
TERM_CHARACTERS = 200  # longer values are cut in the index, and looked up cut
STATUS_TERMS = {Status.STATUS_CODE_OK: "ok", Status.STATUS_CODE_ERROR: "error"}

_WINDOW_BITS = {"gzip": 31, "deflate": 15}  # for zlib
_ZLIB_LEVEL = 1  # a quarter of the size for about 5 µs a span
_MAX_TIME_NS = 2**63 - 1  # what SQLite can hold

Term = tuple[str, str]


@dataclass(slots=True)
class TracePart:
    """The spans of one trace in one request; times in Unix nanoseconds."""

    trace_id: bytes
    data: TracesData = field(default_factory=TracesData)
    start_ns: int = _MAX_TIME_NS
    end_ns: int = 0
    root_name: str | None = None
    root_service: str | None = None
    spans: int = 0
    terms: set[Term] = field(default_factory=set)

    def blob(self) -> bytes:
        """Returns the stored form; :func:`unpack` is its inverse."""
        return zlib.compress(self.data.SerializeToString(), _ZLIB_LEVEL)


@dataclass(frozen=True, slots=True)
class Batch:
    """One request, split: ``parts`` maps a trace id to its spans; ``size`` is its length in bytes."""

    parts: dict[bytes, TracePart]
    size: int
    spans: int
    rejected: int
    complaint: str


def unpack(blobs: list[bytes]) -> bytes:
    """Returns one serialised ``TracesData`` with the spans of all ``blobs``, in order."""
    return b"".join([zlib.decompress(blob) for blob in blobs])


def inflate(body: bytes, encoding: str, limit: int) -> bytes:
    """Undoes ``Content-Encoding``; raises BodyTooLargeError beyond ``limit`` bytes, however small the body was."""
    if encoding in ("", "identity"):
        return body
    if encoding not in _WINDOW_BITS:
        raise UnsupportedMediaTypeError(f"Content-Encoding {encoding!r} is not supported; send gzip, deflate or none")
    pieces, total = [], 0
    try:
        while body:
            member = zlib.decompressobj(wbits=_WINDOW_BITS[encoding])
            pieces.append(member.decompress(body, limit - total + 1))
            total += len(pieces[-1])
            if total > limit:
                raise BodyTooLargeError(
                    f"the decompressed body exceeds {limit} bytes (max_body_bytes); send smaller batches"
                )
            if not member.eof:
                raise BadRequestError(f"the {encoding} body ends early")
            body = member.unused_data
    except zlib.error as error:
        raise BadRequestError(f"the body is not {encoding} as its Content-Encoding says: {error}") from error
    return b"".join(pieces)


def parse(body: bytes, media_type: str) -> ExportTraceServiceRequest:
    """Parses a decompressed body; raises UnsupportedMediaTypeError or BadRequestError."""
    if media_type in (PROTOBUF, "application/protobuf"):
        try:
            return ExportTraceServiceRequest.FromString(body)
        except DecodeError as error:
            raise BadRequestError(f"the body is not an ExportTraceServiceRequest protobuf: {error}") from error
    if media_type == JSON:
        try:
            return ParseDict(ids_from_hex(json.loads(body)), ExportTraceServiceRequest(), ignore_unknown_fields=True)
        except (ParseError, ValueError, RecursionError) as error:
            raise BadRequestError(f"the body is not OTLP JSON: {error}") from error
    raise UnsupportedMediaTypeError(f"Content-Type {media_type!r} is not OTLP; send {PROTOBUF} or {JSON}")


def split(request: ExportTraceServiceRequest, size: int) -> Batch:
    """Splits a request by trace. Spans with a bad id or time are left out and counted as rejected."""
    parts: dict[bytes, TracePart] = {}
    stored = rejected = 0
    complaint = ""
    for resource_spans in request.resource_spans:
        resource_terms = set(_attribute_terms(resource_spans.resource.attributes))
        service = next((value for key, value in resource_terms if key == SERVICE_NAME), "")
        for scope_spans in resource_spans.scope_spans:
            targets: dict[bytes, ScopeSpans] = {}
            for span in scope_spans.spans:
                trace_id = span.trace_id
                problem = _problem(span)
                if problem:
                    rejected += 1
                    complaint = problem
                    continue
                part = parts.get(trace_id)
                if part is None:
                    part = parts[trace_id] = TracePart(trace_id)
                target = targets.get(trace_id)
                if target is None:
                    target = targets[trace_id] = _scope_in(part, resource_spans, scope_spans)
                    part.terms |= resource_terms
                target.spans.append(span)
                _note(part, span, service)
                stored += 1
    return Batch(parts, size, stored, rejected, complaint)


def _problem(span: Span) -> str:
    if len(span.trace_id) != 16 or not any(span.trace_id):
        return "trace_id must be 16 bytes, not all zero"
    if len(span.span_id) != 8 or not any(span.span_id):
        return "span_id must be 8 bytes, not all zero"
    if max(span.start_time_unix_nano, span.end_time_unix_nano) > _MAX_TIME_NS:
        return "start and end time must be below 2**63 nanoseconds"
    return ""


def _scope_in(part: TracePart, resource_spans: ResourceSpans, scope_spans: ScopeSpans) -> ScopeSpans:
    """Opens in ``part`` a copy of this scope, without spans, under a copy of its resource."""
    copy = part.data.resource_spans.add(schema_url=resource_spans.schema_url)
    if resource_spans.HasField("resource"):
        copy.resource.CopyFrom(resource_spans.resource)
    target = copy.scope_spans.add(schema_url=scope_spans.schema_url)
    if scope_spans.HasField("scope"):
        target.scope.CopyFrom(scope_spans.scope)
    return target


def _note(part: TracePart, span: Span, service: str) -> None:
    start, end = span.start_time_unix_nano, span.end_time_unix_nano
    part.spans += 1
    part.start_ns = min(part.start_ns, start)
    part.end_ns = max(part.end_ns, start, end)
    part.terms.add((TERM_NAME, span.name[:TERM_CHARACTERS]))
    status = STATUS_TERMS.get(span.status.code)
    if status:
        part.terms.add((TERM_STATUS, status))
    part.terms.update(_attribute_terms(span.attributes))
    if not span.parent_span_id and part.root_name is None:
        part.root_name, part.root_service = span.name, service


def _attribute_terms(attributes: list[KeyValue]) -> Iterator[Term]:
    for attribute in attributes:
        if attribute.key in INDEXED_ATTRIBUTES:
            for value in _strings(attribute.value):
                yield attribute.key, value[:TERM_CHARACTERS]


def _strings(value: AnyValue) -> list[str]:
    if value.WhichOneof("value") == "array_value":
        return [item.string_value for item in value.array_value.values if item.HasField("string_value")]
    return [value.string_value] if value.HasField("string_value") else []
