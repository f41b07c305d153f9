"""One request as text: its spans as bars on one time axis, the critical path marked, the stages summing to TTFT.

The axis ends at the first token, because that is what is explained here; what goes on longer runs into an arrow.
Without a first token it covers the whole trace. Times are on the router's clock.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from connector import names
from connector.stages import REUSE_STAGES, UNEXPLAINED
from stack.analysis.clock import Clocks
from stack.analysis.complete import defects_of
from stack.analysis.critical_path import STAGE_LEGEND, CriticalPath, NoCriticalPath, path_of
from stack.analysis.overlap import OVERLAP_WORDS
from stack.analysis.request import RequestSpans
from stack.analysis.terminal import Terminal, fit, milliseconds, percent
from stack.analysis.trace import Span, Trace

_NAME = 34  # columns of marker, indent and name
_DURATION = 10  # columns of a duration


@dataclass(frozen=True, slots=True)
class Axis:
    """The time axis: nanoseconds ``start_ns`` to ``end_ns`` over ``width`` columns."""

    start_ns: int
    end_ns: int
    width: int

    def column(self, time_ns: int) -> int:
        """Returns the column an instant falls into, which may lie outside the axis."""
        return (time_ns - self.start_ns) * self.width // max(self.end_ns - self.start_ns, 1)


def waterfall_text(request: RequestSpans, clocks: Clocks, terminal: Terminal) -> str:
    """Returns the whole picture of an aligned request."""
    try:
        path: CriticalPath | None = path_of(request, clocks)
        reason = ""
    except NoCriticalPath as error:
        path, reason = None, str(error)
    lines = [*_title(request, path, terminal), ""]
    lines += _bars(request, path, terminal)
    lines += ["", *_links(request.trace, terminal)]
    if path is not None:
        lines += ["", *_stages(path, terminal)]
    lines += ["", *_remarks(request, path, reason, terminal)]
    lines += ["", *_legend(path, terminal)]
    return "\n".join(line.rstrip() for line in lines).rstrip()


def _title(request: RequestSpans, path: CriticalPath | None, terminal: Terminal) -> Iterator[str]:
    yield f"trace {request.trace.trace_id}"
    yield terminal.safe(f"request {request.request_id or '(unknown)'}, mode {request.mode or '(unknown)'}")
    if path is not None:
        yield terminal.styled(f"TTFT {milliseconds(path.ttft_ns)} ms", "bold")


def _bars(request: RequestSpans, path: CriticalPath | None, terminal: Terminal) -> Iterator[str]:
    spans = request.trace.spans
    width = terminal.width - _NAME - _DURATION - 1
    start = path.start_ns if path else min(s.start_ns for s in spans)
    end = path.start_ns + path.ttft_ns if path else last_end_ns(request)
    axis = Axis(start, max(end, start + 1), width)
    on_path = {segment.span_id for segment in path.segments if segment.span_id} if path else set()
    scale = "0".ljust(width - 10) + milliseconds(axis.end_ns - axis.start_ns).rjust(10)
    yield fit("* on the critical path" if path else "", _NAME) + scale + " ms".rjust(_DURATION + 1)
    for depth, span in tree_order(request.trace):
        marked = span.span_id in on_path
        mark = "!" if span.failed else "*" if marked else " "
        name = fit(terminal.safe(f"{mark} {'  ' * depth}{_label(span)}"), _NAME - 1) + " "
        bar = _bar(span, axis, marked, terminal)
        line = name + terminal.styled(bar, "red" if span.failed else "cyan" if marked else "dim")
        yield line + milliseconds(span.duration_ns).rjust(_DURATION)


def last_end_ns(request: RequestSpans) -> int:
    """When the last span ended, but for what D keeps for the next turn: that ends minutes later."""
    spans = [s for s in request.trace.spans if s not in request.kept]
    return max(s.end_ns for s in spans or request.trace.spans)


def _label(span: Span) -> str:
    rank = span.attributes.get(names.ATTR_RANK)
    return span.name if rank is None else f"{span.name} [{rank!s}]"


def _bar(span: Span, axis: Axis, marked: bool, terminal: Terminal) -> str:
    first, last = axis.column(span.start_ns), axis.column(span.end_ns)
    fill = terminal.glyph("█", "#") if marked else terminal.glyph("░", "-")
    after = terminal.glyph("▸", ">")
    if first >= axis.width:
        return " " * (axis.width - 1) + after
    if last < 0:
        return "<".ljust(axis.width)
    shown_first, shown_last = max(first, 0), min(last, axis.width - 1)
    if shown_first == shown_last and last < axis.width:
        bar = terminal.glyph("▏", "|")
    else:
        bar = fill * (shown_last - shown_first + 1)
    if last >= axis.width and span.end_ns > axis.end_ns:
        bar = bar[:-1] + after
    return (" " * shown_first + bar).ljust(axis.width)


def tree_order(trace: Trace) -> list[tuple[int, Span]]:
    """Returns (depth, span) depth first in start order; what hangs in the air, or in a circle, comes last."""
    children: dict[str, list[Span]] = {}
    ids = {span.span_id for span in trace.spans}
    for span in sorted(trace.spans, key=lambda s: (s.start_ns, -s.end_ns, s.span_id)):
        children.setdefault(span.parent_span_id if span.parent_span_id in ids else "", []).append(span)
    ordered: list[tuple[int, Span]] = []
    seen: set[str] = set()

    def walk(roots: Sequence[Span]) -> None:
        waiting = [(0, span) for span in reversed(roots)]
        while waiting:
            depth, span = waiting.pop()
            if span.span_id not in seen:
                seen.add(span.span_id)
                ordered.append((depth, span))
                waiting += [(depth + 1, child) for child in reversed(children.get(span.span_id, ()))]

    walk(children.get("", ()))
    for span in trace.spans:
        if span.span_id not in seen:
            walk([span])
    return ordered


def _legend(path: CriticalPath | None, terminal: Terminal) -> Iterator[str]:
    marks = "! failed; [N] made by the worker of that rank"
    if path is not None:
        kinds = [f" {kind}: {OVERLAP_WORDS[kind]}." for kind, ns in path.overlapped_ns.items() if ns]
        marks = f"* on the critical path; ▸ goes on after the first token; {marks}. {STAGE_LEGEND} share: of TTFT."
        marks += "".join(kinds)
    for line in textwrap.wrap(terminal.ascii(marks), terminal.width):
        yield terminal.styled(line, "dim")


def _links(trace: Trace, terminal: Terminal) -> Iterator[str]:
    by_id: Mapping[str, Span] = {span.span_id: span for span in trace.spans}
    arrow = terminal.glyph("→", "->")
    linked = [(span, link) for span in trace.spans for link in span.links]
    yield "links" if linked else "links: none"
    for span, link in linked:
        target = by_id.get(link.span_id)
        name = _label(target) if target else f"span {link.span_id}, which is not in the trace"
        yield terminal.safe(f"  {_label(span)} {arrow} {name}")


def _stages(path: CriticalPath, terminal: Terminal) -> Iterator[str]:
    yield terminal.styled("stage".ljust(18) + "ms".rjust(12) + "share".rjust(9), "bold")
    for stage, ns in [*path.stages.items(), (UNEXPLAINED, path.unexplained_ns)]:
        if stage in REUSE_STAGES and path.mode != names.MODE_REUSE:
            continue
        line = stage.ljust(18) + f"{ns / 1e6:.3f}".rjust(12) + percent(ns / (path.ttft_ns or 1)).rjust(9)
        yield terminal.styled(line, "dim") if ns == 0 else line
    total = sum(path.stages.values()) + path.unexplained_ns
    yield terminal.styled("sum = TTFT".ljust(18) + f"{total / 1e6:.3f}".rjust(12) + percent(1).rjust(9), "bold")
    hidden = {kind: ns for kind, ns in path.overlapped_ns.items() if ns}
    if hidden:
        yield "overlapped: ran behind prefill, not part of TTFT"
        for kind, ns in hidden.items():
            yield f"  {kind}".ljust(18) + f"{ns / 1e6:.3f}".rjust(12)


def _remarks(request: RequestSpans, path: CriticalPath | None, reason: str, terminal: Terminal) -> Iterator[str]:
    remarks = [f"no critical path: {reason}"] if reason else []
    for span in request.trace.spans:
        if span.failed:
            kind = str(span.attributes.get(names.ATTR_ERROR_TYPE, "unknown"))
            remarks.append(f"{_label(span)} failed: {kind} {span.status_message}".rstrip())
    if path is not None:
        if path.last_arrival:
            remarks.append(f"last to arrive at the rendezvous: {path.last_arrival}")
        remarks += reuse_remarks(path)
        if path.flight_uncertainty_ns:
            remarks.append(f"up to {milliseconds(path.flight_uncertainty_ns)} ms of flight may be notify (polling)")
        if path.clock_uncertainty_ns is None:
            remarks.append("clocks of different hosts: uncertainty unbounded")
        elif path.clock_uncertainty_ns:
            remarks.append(f"clocks of different hosts: uncertain by {milliseconds(path.clock_uncertainty_ns)} ms")
        remarks += unexplained_gaps(path)
        remarks += [f"anomaly: {a.stage} {a.detail} by {milliseconds(-a.value_ns)} ms" for a in path.anomalies]
        remarks += path.notes
    remarks += [f"incomplete: {defect}" for defect in defects_of(request)]
    for remark in remarks:
        yield from textwrap.wrap(terminal.safe(remark), terminal.width, subsequent_indent="  ")


def reuse_remarks(path: CriticalPath) -> Iterator[str]:
    """What was found of the turn before, and how much P had to compute."""
    if path.lookup:
        yield f"what was kept of the turn before: {path.lookup}"
    tokens = path.tokens
    if tokens is not None and (path.lookup or tokens.reused or tokens.cached):
        yield (
            f"of {tokens.prompt} prompt tokens {tokens.reused} were reused from D, {tokens.cached} were in P's own "
            f"prefix cache, {tokens.computed} computed"
        )


def unexplained_gaps(path: CriticalPath) -> Iterator[str]:
    """Names the stretches that no stage covers, where they are at least a hundredth of TTFT."""
    for before, segment, after in zip((None, *path.segments), path.segments, (*path.segments[1:], None), strict=False):
        if segment.stage == UNEXPLAINED and segment.duration_ns * 100 >= path.ttft_ns:
            where = f"between {before.stage if before else 'request in'} and {after.stage if after else 'first token'}"
            yield f"unexplained: {milliseconds(segment.duration_ns)} ms {where}"
