"""Puts many critical paths side by side: per mode and stage, with what was left out and why.

Percentiles interpolate linearly between the two closest ranks (Hyndman and Fan's type 7: the value at rank
``p * (n - 1)``, as numpy's default). One is believed when at least five samples lie beyond it: n >= 10 for p50, 50
for p90, 500 for p99. A stage's share is the mean over requests of its fraction of that request's TTFT, so that one
slow request does not decide it; the shares and that of ``unexplained`` add up to 1.

Left out of the figures are requests that a measurement sent on its own account (warm-up, one more step), requests that
failed, traces without a measurable TTFT, traces whose path lacks a span (their stages would count as 0), answers that
were not streamed (TTFT is then the whole answer), requests for which nothing was transferred, and traces whose mode is
unknown. Traces that lack something the path does not need stay in and are counted as incomplete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from statistics import fmean

from connector import names
from connector.stages import STAGE_NAMES, UNEXPLAINED
from stack.analysis.clock import Bounds
from stack.analysis.complete import Defect, defects_of
from stack.analysis.critical_path import (
    CriticalPath,
    NoCriticalPath,
    aligned_request,
    path_of,
    trace_bounds,
)
from stack.analysis.overlap import OVERLAP_KINDS
from stack.analysis.request import RequestSpans
from stack.analysis.reuse import PromptTokens, total_tokens
from stack.analysis.trace import Span, Trace

MODE_ORDER = (names.MODE_PUSH, names.MODE_PULL, names.MODE_REUSE, names.MODE_PLAIN, names.MODE_NONE)
PERCENTILES = (50, 90, 99)
SAMPLES_BEYOND = 5
UNCOUNTED = "a measurement's own request: {}"  # with one of names.UNCOUNTED_REASONS


@dataclass(frozen=True, slots=True)
class Analysed:
    """One trace and what became of it: a path, or the reason why it counts for nothing."""

    trace_id: str
    mode: str
    path: CriticalPath | None
    defects: tuple[Defect, ...]
    excluded: str = ""  # "" when it is in the figures
    failed: bool = False  # or refused: the client was told so


@dataclass(frozen=True, slots=True)
class Distribution:
    """Nanoseconds: percentiles, mean and extremes of one quantity over the requests of a mode."""

    p50: float
    p90: float
    p99: float
    mean: float
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class StageFigures:
    """One stage of one mode; ``share`` is the mean over requests of its fraction of TTFT."""

    time: Distribution
    share: float


@dataclass(frozen=True, slots=True)
class ModeFigures:
    """All requests of one mode; ``stages`` has every stage and ``unexplained``."""

    mode: str
    seen: int
    counted: int
    failed: int  # or refused
    incomplete: int
    ttft: Distribution | None
    stages: Mapping[str, StageFigures]
    overlapped: Mapping[str, Distribution]
    overlapped_total: Distribution | None
    last_arrival: Mapping[str, int]
    tokens: PromptTokens | None  # of all prompts together; None: no trace says
    lookups: Mapping[str, int]  # mode reuse: what was found of the turn before
    reasons_incomplete: Mapping[str, int]
    reasons_excluded: Mapping[str, int]
    anomalies: Mapping[str, int]
    clock_uncertainty_ns: int | None  # the largest; None: unbounded for some request

    def believed(self, percentile: int) -> bool:
        """Returns whether enough samples lie beyond the percentile."""
        return believed(self.counted, percentile)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Modes in the fixed order push, pull, reuse, plain, then anything else."""

    modes: Mapping[str, ModeFigures] = field(default_factory=dict)
    traces: int = 0


def believed(samples: int, percentile: int) -> bool:
    """Whether at least five of ``samples`` lie beyond ``percentile``."""
    return samples * (100 - percentile) >= SAMPLES_BEYOND * 100


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Returns a percentile of an ascending, non-empty sequence (type 7)."""
    rank = (len(ordered) - 1) * percent / 100
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def pooled_bounds(traces: Iterable[Trace]) -> Bounds:
    """Returns the clock bounds of all traces together: tighter, as long as offsets do not drift meanwhile."""
    return reduce(Bounds.pooled, (trace_bounds(trace) for trace in traces), Bounds())


def analyse(trace: Trace, pooled: Bounds | None = None) -> Analysed:
    """Returns the path and the defects of one trace, or why it has no place in a comparison."""
    request, clocks = aligned_request(trace, pooled)
    found = tuple(defects_of(request))
    mode = request.mode or "unknown"
    if request.root is not None and request.root.failed:
        return Analysed(trace.trace_id, mode, None, found, _error(request.root), failed=True)
    reason = UNCOUNTED.format(request.uncounted) if request.uncounted else ""
    try:
        path = path_of(request, clocks)
    except NoCriticalPath as error:
        return Analysed(trace.trace_id, mode, None, found, reason or str(error))
    if mode not in MODE_ORDER:
        return Analysed(trace.trace_id, mode, path, found, f"unknown mode {mode!r}")
    return Analysed(trace.trace_id, mode, path, found, reason or _excluded(request, path))


def _error(root: Span) -> str:
    """What failed, and the status that the client saw where the type does not name it."""
    kind = str(root.attributes.get(names.ATTR_ERROR_TYPE, "unknown"))
    status = str(root.attributes.get(names.ATTR_HTTP_STATUS, kind))
    return f"error: {kind}" if status == kind else f"error: {kind} (status {status})"


def _excluded(request: RequestSpans, path: CriticalPath) -> str:
    if path.missing:
        return f"path lacks {path.missing[0]}"
    if not request.streamed:
        return "not streamed: its first token is its last byte"
    if request.nothing_transferred:
        return "nothing transferred: D had the prompt cached"
    return ""


def analyse_all(traces: Sequence[Trace]) -> list[Analysed]:
    """Analyses every trace with the clock bounds of all of them."""
    pooled = pooled_bounds(traces)
    return [analyse(trace, pooled) for trace in traces]


def compare(analysed: Iterable[Analysed]) -> Comparison:
    """Aggregates by mode."""
    by_mode: dict[str, list[Analysed]] = {}
    for item in analysed:
        by_mode.setdefault(item.mode, []).append(item)
    order = [m for m in MODE_ORDER if m in by_mode] + sorted(set(by_mode) - set(MODE_ORDER))
    return Comparison(
        {mode: _figures(mode, by_mode[mode]) for mode in order}, sum(len(members) for members in by_mode.values())
    )


def _figures(mode: str, members: Sequence[Analysed]) -> ModeFigures:
    paths = [m.path for m in members if m.path is not None and not m.excluded]
    uncertainties = [p.clock_uncertainty_ns for p in paths]
    known = [u for u in uncertainties if u is not None]
    return ModeFigures(
        mode=mode,
        seen=len(members),
        counted=len(paths),
        failed=sum(1 for m in members if m.failed),
        incomplete=sum(1 for m in members if m.defects),
        ttft=_distribution(p.ttft_ns for p in paths),
        stages=_stages(paths),
        overlapped=_by_key(OVERLAP_KINDS, paths, lambda p, kind: p.overlapped_ns.get(kind, 0)),
        overlapped_total=_distribution(p.overlapped_total_ns for p in paths),
        last_arrival=dict(Counter(p.last_arrival for p in paths if p.last_arrival)),
        tokens=total_tokens(p.tokens for p in paths),
        lookups=dict(Counter(p.lookup for p in paths if p.lookup)),
        reasons_incomplete=dict(Counter(str(d) for m in members for d in m.defects).most_common()),
        reasons_excluded=dict(Counter(m.excluded for m in members if m.excluded).most_common()),
        anomalies=dict(Counter(f"{a.stage} {a.detail}" for p in paths for a in p.anomalies).most_common()),
        clock_uncertainty_ns=max(known, default=0) if len(known) == len(uncertainties) else None,
    )


def stage_time(path: CriticalPath, stage: str) -> int:
    """Returns nanoseconds of a stage or of ``unexplained``."""
    return path.unexplained_ns if stage == UNEXPLAINED else path.stages[stage]


def _stages(paths: Sequence[CriticalPath]) -> dict[str, StageFigures]:
    names_ = (*STAGE_NAMES, UNEXPLAINED)
    times = _by_key(names_, paths, stage_time)
    shares = {name: [stage_time(p, name) / p.ttft_ns for p in paths if p.ttft_ns] for name in names_}
    return {name: StageFigures(time, fmean(shares[name] or [0.0])) for name, time in times.items()}


def _by_key(
    keys: Iterable[str], paths: Sequence[CriticalPath], value: Callable[[CriticalPath, str], int]
) -> dict[str, Distribution]:
    found = {key: _distribution(value(path, key) for path in paths) for key in keys}
    return {key: distribution for key, distribution in found.items() if distribution is not None}


def _distribution(values: Iterable[int]) -> Distribution | None:
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p90, p99 = (percentile(ordered, p) for p in PERCENTILES)
    return Distribution(p50, p90, p99, fmean(ordered), ordered[0], ordered[-1])
