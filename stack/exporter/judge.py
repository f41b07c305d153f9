"""Says what one trace counts as, and which figures it gives. Pure.

The rules are those of ``kvpath report`` (:mod:`stack.analysis.compare`): a trace is in the figures when its path is
whole, it did not fail, it was streamed and something was transferred. In addition a path with a negative stage (clocks
that contradict each other) gives no figures here, and is counted: a histogram's sum must not fall, and clipping the
stage would make the stages add up to something else than TTFT.
"""

from __future__ import annotations

from dataclasses import dataclass

from connector import names
from stack.analysis.clock import Bounds, domain_names, path_clocks
from stack.analysis.compare import analyse
from stack.analysis.complete import Defect
from stack.analysis.critical_path import CriticalPath, trace_bounds
from stack.analysis.trace import Trace

OUTCOME_COMPLETE = "complete"
OUTCOME_INCOMPLETE = "incomplete"
OUTCOME_FAILED = "failed"
OUTCOME_UNCOUNTED = "uncounted"  # a measurement sent it on its own account: in no figure, whatever it lacks

MODE_UNKNOWN = "unknown"  # the trace does not say; names.MODE_NONE: refused before one was decided
MODES = (*names.TRANSFER_MODES, names.MODE_PLAIN)

REASON_PATH = "path"  # the path lacks a span that no mode requires
REASON_NEGATIVE = "negative"  # a stage that is negative
REASON_CLOCK = "clock"  # the uncertainty of the clocks is unbounded: in the figures, but not in that histogram
REASON_UNREADABLE = "unreadable"  # found, but the trace store never gave it


@dataclass(frozen=True, slots=True)
class Judged:
    """One trace. ``path`` is there when it belongs in the figures; ``settled``: late spans will not change it.

    ``reasons`` are few words to count by, each once: a defect's kind, with the span's name where a span is missing.
    """

    trace_id: str
    mode: str
    outcome: str
    settled: bool
    reasons: tuple[str, ...] = ()
    path: CriticalPath | None = None
    ended_ns: int | None = None  # of the SERVER span, on the router's clock


def judge(trace: Trace, pooled: Bounds | None = None) -> Judged:
    """Returns what ``trace`` counts as if no further span came. ``pooled``: clock bounds of other traces."""
    analysed = analyse(trace, pooled)
    root = trace.server_span()
    mode = analysed.mode if analysed.mode in (*MODES, names.MODE_NONE) else MODE_UNKNOWN
    ended_ns = root.end_ns if root is not None else None
    if root is not None and root.failed:
        return Judged(trace.trace_id, mode, OUTCOME_FAILED, True, ended_ns=ended_ns)
    if root is not None and names.ATTR_UNCOUNTED in root.attributes:
        return Judged(trace.trace_id, mode, OUTCOME_UNCOUNTED, True, ended_ns=ended_ns)
    reasons = dict.fromkeys(_reason(defect) for defect in analysed.defects)
    if not reasons and analysed.path is not None and analysed.path.missing:
        reasons[REASON_PATH] = None
    settled = not reasons
    path = None if analysed.excluded else analysed.path
    if path is not None and _negative(path):
        path = None
        reasons[REASON_NEGATIVE] = None
    outcome = OUTCOME_INCOMPLETE if reasons else OUTCOME_COMPLETE
    if path is not None and path.clock_uncertainty_ns is None:
        reasons[REASON_CLOCK] = None
    return Judged(trace.trace_id, mode, outcome, settled, tuple(reasons), path, ended_ns)


def unreadable(trace_id: str) -> Judged:
    """What a trace counts as that was found and could not be fetched."""
    return Judged(trace_id, MODE_UNKNOWN, OUTCOME_INCOMPLETE, True, (REASON_UNREADABLE,))


def _reason(defect: Defect) -> str:
    """Keeps the values of one label few: subjects may quote what came over the wire."""
    return f"{defect.kind} {defect.subject.split()[0]}" if defect.kind == "span" else defect.kind


def _negative(path: CriticalPath) -> bool:
    return path.ttft_ns < 0 or path.unexplained_ns < 0 or any(ns < 0 for ns in path.stages.values())


class RecentBounds:
    """The clock bounds of the last one to two ``period_s``, for requests that cross hosts.

    Bounds of many requests together are far tighter than one's own, and clocks hardly drift within minutes.
    """

    def __init__(self, period_s: float = 60.0) -> None:
        self._period_s = period_s
        self._since_s = 0.0
        self._before, self._now = Bounds(), Bounds()

    def add(self, trace: Trace, now_s: float) -> Bounds | None:
        """Adds a trace's bounds and returns all of them; ``None`` when the trace is of one clock."""
        if len(path_clocks(trace, domain_names(trace))) < 2:
            return None
        if now_s - self._since_s >= self._period_s:
            self._before, self._now, self._since_s = self._now, Bounds(), now_s
        self._now = self._now.pooled(trace_bounds(trace))
        return self._before.pooled(self._now)
