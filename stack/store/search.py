"""Tempo's ``GET /api/search``: parameters, evaluation newest first, and the answer's shape."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.trace.v1 import trace_pb2

from stack.store.errors import BadRequestError, SearchTimeoutError
from stack.store.evaluate import SpanView, TraceSummary, compile_filter, fields_of
from stack.store.otlp import SERVICE_NAME
from stack.store.plan import Plan, plan
from stack.store.reader import Window, candidates, decode, reading, views
from stack.store.tag_query import TagQuery, parse_tags
from stack.store.traceql import Attribute, Expression, Field, Intrinsic, Kind, Status, parse
from stack.store.traceql_tokens import duration_ns

DEFAULT_LIMIT = 20
MAX_LIMIT = 10_000
DEFAULT_SPANS_PER_SET = 3
ROOT_MISSING = "<root span not yet received>"  # as Tempo says it

_PARAMETERS = {"q", "tags", "minDuration", "maxDuration", "start", "end", "limit", "spss"}


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """One search. ``spans_per_set`` 0 means all matching spans; ``by_query`` is False for tags and for neither."""

    expression: Expression | None = None
    by_query: bool = False
    tags: TagQuery = field(default_factory=TagQuery)
    window: Window = field(default_factory=Window)
    limit: int = DEFAULT_LIMIT
    spans_per_set: int = DEFAULT_SPANS_PER_SET


def read_request(parameters: Mapping[str, str]) -> SearchRequest:
    """Reads the URL's parameters; raises BadRequestError for what is unknown, malformed or contradictory."""
    unknown = sorted(set(parameters) - _PARAMETERS)
    if unknown:
        raise BadRequestError(f"parameter {unknown[0]!r} is not supported; use {', '.join(sorted(_PARAMETERS))}")
    query, tags = parameters.get("q", "").strip(), parameters.get("tags", "").strip()
    if query and tags:
        raise BadRequestError("give q or tags, not both")
    request = SearchRequest(
        expression=parse(query) if query else None,
        by_query=bool(query),
        tags=parse_tags(tags),
        window=Window(
            start_ns=_whole(parameters, "start", 0, maximum=2**33) * 10**9,
            end_ns=_whole(parameters, "end", 2**33, maximum=2**33) * 10**9,
            min_duration_ns=_duration(parameters, "minDuration", 0),
            max_duration_ns=_duration(parameters, "maxDuration", 2**63 - 1),
        ),
        limit=_whole(parameters, "limit", DEFAULT_LIMIT, minimum=1, maximum=MAX_LIMIT),
        spans_per_set=_whole(parameters, "spss", DEFAULT_SPANS_PER_SET, maximum=MAX_LIMIT),
    )
    if request.window.start_ns > request.window.end_ns:
        raise BadRequestError("start must not be after end")
    return request


def _whole(parameters: Mapping[str, str], name: str, default: int, *, minimum: int = 0, maximum: int) -> int:
    text = parameters.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and minimum <= int(text) <= maximum):
        raise BadRequestError(f"{name}={text!r} must be a whole number from {minimum} to {maximum}")
    return int(text)


def _duration(parameters: Mapping[str, str], name: str, default: int) -> int:
    text = parameters.get(name, "")
    if not text:
        return default
    try:
        return max(0, min(duration_ns(text), 2**63 - 1))
    except BadRequestError as error:
        raise BadRequestError(f"{name}: {error}") from error


def search(
    path: Path, request: SearchRequest, timeout_s: float, monotonic: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """Returns the newest traces that match, at most ``limit``, in Tempo's shape.

    Raises StorageError, or SearchTimeoutError after ``timeout_s`` seconds: an answer is whole or it is an error.
    """
    matches = compile_filter(request.expression)
    narrowed = plan(request.expression) if request.by_query else Plan()
    deadline = monotonic() + timeout_s
    found: dict[int, dict[str, Any]] = {}
    traces = size = 0
    with reading(path) as connection:
        for candidate in candidates(connection, narrowed, request.window):
            traces += 1
            size += len(candidate.data)
            if all(needle in candidate.data for needle in narrowed.needles):
                spans = list(views(decode(candidate.data), candidate.summary))
                matched = [span for span in spans if matches(span)]
                if matched and request.tags.matches(spans) and candidate.summary.key not in found:
                    found[candidate.summary.key] = _entry(request, candidate.summary, spans, matched)
            if len(found) == request.limit:
                break
            if monotonic() > deadline:
                raise SearchTimeoutError(
                    f"the search took longer than {timeout_s:g} s after {traces} traces; narrow it with start and end, "
                    f"or by name, status, {SERVICE_NAME} or a request id, which are indexed"
                )
    return {"traces": list(found.values()), "metrics": {"inspectedTraces": traces, "inspectedBytes": str(size)}}


def _entry(
    request: SearchRequest, summary: TraceSummary, spans: list[SpanView], matched: list[SpanView]
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "traceID": summary.trace_id.hex().lstrip("0"),  # Tempo leaves leading zeros out here
        "rootServiceName": summary.root_service or (ROOT_MISSING if summary.root_name is None else ""),
        "rootTraceName": ROOT_MISSING if summary.root_name is None else summary.root_name,
        "startTimeUnixNano": str(summary.start_ns),
        "durationMs": (summary.end_ns - summary.start_ns) // 10**6,
        "serviceStats": _service_stats(spans),
    }
    if request.by_query:
        shown = sorted(matched, key=lambda view: view.span.start_time_unix_nano)
        shown = shown[: request.spans_per_set] if request.spans_per_set else shown
        fields = fields_of(request.expression)
        span_set = {"spans": [_span(view, fields) for view in shown], "matched": len(matched)}
        entry |= {"spanSet": span_set, "spanSets": [span_set]}
    return entry


def _span(view: SpanView, fields: Iterable[Field]) -> dict[str, Any]:
    attributes = []
    for field_ in fields:
        value = _json_value(view, field_)
        if value is not None:
            attributes.append({"key": field_.name if isinstance(field_, Attribute) else str(field_), "value": value})
    return {
        "spanID": view.span.span_id.hex(),
        "name": view.span.name,
        "startTimeUnixNano": str(view.span.start_time_unix_nano),
        "durationNanos": str(view.duration_ns),
        "attributes": attributes,
    }


def _json_value(view: SpanView, field_: Field) -> dict[str, Any] | None:
    """Returns a queried field in OTLP JSON; None when it is missing or shown elsewhere."""
    if isinstance(field_, Attribute):
        found = view.find(field_)
        return None if found is None else MessageToDict(found)
    if field_ in (Intrinsic.STATUS, Intrinsic.KIND):
        value = view.get(field_)
        return {"stringValue": value.name.lower()} if isinstance(value, Status | Kind) else None
    return None


def _service_stats(spans: list[SpanView]) -> dict[str, dict[str, int]]:
    stats: dict[str, dict[str, int]] = {}
    for view in spans:
        service = view.resource.get(SERVICE_NAME)
        entry = stats.setdefault(service.string_value if service else "", {"spanCount": 0, "errorCount": 0})
        entry["spanCount"] += 1
        entry["errorCount"] += view.span.status.code == trace_pb2.Status.STATUS_CODE_ERROR
    return stats
