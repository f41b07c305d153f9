"""One request as the page draws it: spans in tree order on the router's clock, the path, and what to know about it.

Times are nanoseconds after the request came in. Text that could hold a prompt or a completion stays here: of
attributes that are text, only those of known meaning leave, the rest is named and withheld.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from connector import names
from stack.analysis.clock import Bounds, Clocks
from stack.analysis.compare import analyse
from stack.analysis.critical_path import CriticalPath, aligned_request
from stack.analysis.report_json import path_document
from stack.analysis.terminal import milliseconds
from stack.analysis.trace import Attributes, AttributeValue, Span, Trace
from stack.analysis.waterfall import last_end_ns, reuse_remarks, tree_order, unexplained_gaps
from stack.view.rows import STAGE_ORDER, request_row

WITHHELD = "(text withheld: not an attribute of known meaning)"
LONGEST = 400  # characters of one value
_KNOWN_TEXT = (
    "kvpath.",
    "http.request.method",
    "http.response.",
    "url.path",
    "error.type",
    "exception.type",
    "server.",
    "network.",
    "service.",
    "telemetry.sdk.",
    "host.",
    "process.pid",
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.request.id",
    "gen_ai.response.model",
    "gen_ai.response.id",
    "gen_ai.response.finish_reasons",
)


def request_detail(trace: Trace, pooled: Bounds) -> dict[str, Any]:
    """Returns everything the page shows of one request."""
    analysed = analyse(trace, pooled)
    request, clocks = aligned_request(trace, pooled)
    path = analysed.path
    spans = request.trace.spans
    start = path.start_ns if path else request.root.start_ns if request.root else min(s.start_ns for s in spans)
    on_path = {s.span_id for s in path.segments if s.span_id} if path else set()
    tree = tree_order(request.trace)
    return {
        "row": request_row(trace, analysed),
        "path": path_document(path) if path else None,
        "stage_order": STAGE_ORDER,
        "spans": [_span(span, depth, start, span.span_id in on_path) for depth, span in tree],
        "links": list(_links(request.trace)),
        "first_token_ns": None if request.first_token_ns is None else request.first_token_ns - start,
        "end_ns": last_end_ns(request) - start,
        "clocks": _clocks(clocks, path),
        "notes": list(_notes(path, analysed.excluded)),
        "failures": list(_failures(spans)),
        "incomplete": [str(defect) for defect in analysed.defects],
    }


def _span(span: Span, depth: int, start: int, on_path: bool) -> dict[str, Any]:
    return {
        "id": span.span_id,
        "depth": depth,
        "name": span.name,
        "rank": _text(span.attributes.get(names.ATTR_RANK)) if names.ATTR_RANK in span.attributes else None,
        "service": span.resource.service_name,
        "start_ns": span.start_ns - start,
        "end_ns": span.end_ns - start,
        "on_path": on_path,
        "failed": span.failed,
        "status_message": _cut(span.status_message),
        "attributes": visible_attributes(span.attributes),
        "resource": visible_attributes(span.resource.attributes),
        "events": [
            {"name": e.name, "at_ns": e.time_ns - start, "attributes": visible_attributes(e.attributes)}
            for e in span.events
        ],
    }


def visible_attributes(attributes: Attributes) -> list[list[str]]:
    """Returns [key, value as text] in alphabetical order, unknown text withheld."""
    return [[_cut(key), _visible(key, value)] for key, value in sorted(attributes.items())]


def _visible(key: str, value: AttributeValue) -> str:
    harmless = value is None or isinstance(value, bool | int | float)
    return _cut(_text(value)) if harmless or key.startswith(_KNOWN_TEXT) else WITHHELD


def _text(value: AttributeValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(_text(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_text(item)}" for key, item in value.items())
    return "" if value is None else value.hex() if isinstance(value, bytes) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def _links(trace: Trace) -> Iterator[dict[str, Any]]:
    present = {span.span_id for span in trace.spans}
    for span in trace.spans:
        for link in span.links:
            yield {"from": span.span_id, "to": link.span_id, "present": link.span_id in present}


def _clocks(clocks: Clocks, path: CriticalPath | None) -> dict[str, Any]:
    return {
        "count": len(clocks.offsets),
        "uncertainty_ns": clocks.uncertainty_ns,
        "offsets_ns": {domain: ns for domain, ns in clocks.offsets.items() if domain != clocks.reference},
        "conflicts": list(clocks.conflicts),
        "flight_uncertainty_ns": path.flight_uncertainty_ns if path else 0,
    }


def _notes(path: CriticalPath | None, excluded: str) -> Iterator[str]:
    if excluded:
        yield f"left out of the comparison: {excluded}"
    if path is None:
        return
    if path.last_arrival:
        yield f"last to arrive at the rendezvous: {path.last_arrival}"
    yield from reuse_remarks(path)
    if path.flight_uncertainty_ns:
        yield f"up to {milliseconds(path.flight_uncertainty_ns)} ms of flight may be notify (polling)"
    yield from unexplained_gaps(path)
    for anomaly in path.anomalies:
        yield f"anomaly: {anomaly.stage} {anomaly.detail} by {milliseconds(-anomaly.value_ns)} ms"
    yield from (f"the path lacks {name}" for name in path.missing)
    yield from path.notes


def _failures(spans: tuple[Span, ...]) -> Iterator[str]:
    for span in spans:
        if span.failed:
            kind = _text(span.attributes.get(names.ATTR_ERROR_TYPE, "unknown"))
            message = "" if span.status_message == kind else span.status_message
            yield _cut(f"{span.name}: {kind} {message}".rstrip())
