"""The critical path of the time to the first token (TTFT) of one request: a pure function of its trace.

The path is a chain of segments from "request in" to "first token out". Each segment belongs to a stage of
:mod:`connector.stages`; what no stage covers is ``unexplained``. Segments are signed differences of consecutive
instants, so the stages plus ``unexplained`` equal TTFT exactly, in integer nanoseconds, whatever the trace holds.
An instant that goes back in time makes a negative segment, which stays in the sums and is named in ``anomalies``.

Where a stage counts only in part, that is its definition and no correction: a handshake that ran while prefill still
computed cost nothing and appears under *overlapped*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from connector import names
from connector.stages import STAGE_NAMES, UNEXPLAINED
from stack.analysis.clock import Bounds, Clocks, align, domain_names, estimate, messages, path_clocks
from stack.analysis.overlap import overlapped, overlapped_total
from stack.analysis.path_draft import Plan
from stack.analysis.path_plan import plan_path
from stack.analysis.request import RequestSpans, request_spans
from stack.analysis.reuse import PromptTokens, lookup_outcome, prompt_tokens
from stack.analysis.trace import Trace

STAGE_LEGEND = (
    "A stage lasts from the end of what was before it on the path to its own milestone: it may be longer than the span "
    "of its name."
)


class NoCriticalPath(ValueError):  # noqa: N818 - the absence of a path, not a fault
    """The trace has no measurable TTFT; the message says why."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the path on the router's clock; ``span_id`` is "" where a gap between spans makes it."""

    stage: str
    start_ns: int
    end_ns: int
    span_id: str = ""

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A length that cannot be right and was left as it is: ``value_ns`` is negative."""

    stage: str
    value_ns: int
    detail: str


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Where one request's TTFT went; every time in nanoseconds.

    ``stages`` has every name of :data:`connector.stages.STAGE_NAMES`. ``missing`` names spans that the path needed
    and the trace lacks: their time is in ``unexplained``, and such a path belongs in no comparison.
    ``flight_uncertainty_ns``: so much of ``flight`` may really be ``notify`` (polling). ``clock_uncertainty_ns``
    bounds the error of every stage that spans two hosts; ``None`` means unbounded.
    """

    trace_id: str
    request_id: str
    mode: str
    start_ns: int
    ttft_ns: int
    segments: tuple[Segment, ...]
    stages: Mapping[str, int]
    unexplained_ns: int
    overlapped_ns: Mapping[str, int] = field(default_factory=dict)
    overlapped_total_ns: int = 0
    last_arrival: str | None = None
    tokens: PromptTokens | None = None
    lookup: str | None = None  # mode reuse: what the router and P found of the turn before
    flight_uncertainty_ns: int = 0
    clock_uncertainty_ns: int | None = 0
    anomalies: tuple[Anomaly, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def trace_bounds(trace: Trace) -> Bounds:
    """Returns the clock bounds that one trace gives, to be pooled with those of others."""
    return Bounds.of(messages(request_spans(trace), domain_names(trace)))


def aligned_request(trace: Trace, pooled: Bounds | None = None) -> tuple[RequestSpans, Clocks]:
    """Returns the request's spans on the router's clock, and the offsets that were applied.

    ``pooled`` are bounds of many traces of the same hosts, which are tighter; where they contradict each other (the
    offset drifted meanwhile) the trace's own bounds are used instead and the contradiction is kept in ``conflicts``.
    """
    request = request_spans(trace)
    domains = domain_names(trace)
    present = path_clocks(trace, domains)
    reference = domains[id(request.root.resource)] if request.root else min(present, default="unknown")
    own = Bounds.of(messages(request, domains))
    clocks = estimate(own, present, reference)
    if pooled is not None and len(present) > 1:
        shared = estimate(own.pooled(pooled), present, reference)
        if not shared.conflicts or clocks.conflicts:
            clocks = shared
        else:
            drifted = tuple(f"pooled over traces: {conflict}" for conflict in shared.conflicts)
            clocks = Clocks(reference, clocks.offsets, clocks.intervals, clocks.uncertainty_ns, drifted)
    aligned = align(trace, clocks, domains)
    return (request if aligned is trace else request_spans(aligned)), clocks


def critical_path(trace: Trace, pooled: Bounds | None = None) -> CriticalPath:
    """Returns the critical path of ``trace``; raises :class:`NoCriticalPath` when it has no measurable TTFT."""
    request, clocks = aligned_request(trace, pooled)
    return path_of(request, clocks)


def path_of(request: RequestSpans, clocks: Clocks) -> CriticalPath:
    """The critical path of spans that are already aligned."""
    root, first_token = request.root, request.first_token_ns
    if root is None:
        raise NoCriticalPath(f"no SERVER span of {names.SERVICE_ROUTER}")
    if first_token is None:
        raise NoCriticalPath(f"no {names.EVENT_FIRST_TOKEN} event")
    plan = plan_path(request, root.start_ns, first_token)
    segments = _tile(plan, root.start_ns, first_token)
    totals = dict.fromkeys((*STAGE_NAMES, UNEXPLAINED), 0)
    for segment in segments:
        totals[segment.stage] += segment.duration_ns
    unexplained = totals.pop(UNEXPLAINED)
    return CriticalPath(
        trace_id=request.trace.trace_id,
        request_id=request.request_id,
        mode=request.mode,
        start_ns=root.start_ns,
        ttft_ns=first_token - root.start_ns,
        segments=segments,
        stages=totals,
        unexplained_ns=unexplained,
        overlapped_ns=overlapped(request),
        overlapped_total_ns=overlapped_total(request),
        last_arrival=plan.last_arrival,
        tokens=prompt_tokens(request),
        lookup=lookup_outcome(request),
        flight_uncertainty_ns=plan.flight_uncertainty_ns,
        clock_uncertainty_ns=clocks.uncertainty_ns,
        anomalies=_anomalies(segments),
        missing=plan.missing,
        notes=plan.notes + clocks.conflicts,
    )


def _tile(plan: Plan, start_ns: int, end_ns: int) -> tuple[Segment, ...]:
    """Joins the planned pieces into one unbroken chain; whatever lies between two of them is unexplained."""
    segments: list[Segment] = []
    reached = start_ns
    for piece in plan.pieces:
        if piece.start_ns != reached:
            segments.append(Segment(UNEXPLAINED, reached, piece.start_ns))
        if piece.end_ns != piece.start_ns:
            segments.append(Segment(piece.stage, piece.start_ns, piece.end_ns, piece.span_id))
        reached = piece.end_ns
    if reached != end_ns:
        segments.append(Segment(UNEXPLAINED, reached, end_ns))
    return tuple(segments)


def _anomalies(segments: tuple[Segment, ...]) -> tuple[Anomaly, ...]:
    found = []
    for before, segment in zip((None, *segments), segments, strict=False):
        if segment.duration_ns < 0:
            where = f"after {before.stage}" if before else "at the start"
            found.append(Anomaly(segment.stage, segment.duration_ns, f"goes back in time {where}"))
    return tuple(found)
