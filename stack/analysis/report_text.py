"""The comparison as a terminal table: modes side by side, then what was hidden, left out or doubtful."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from connector import names
from connector.stages import REUSE_STAGES
from stack.analysis.compare import MODE_ORDER, PERCENTILES, SAMPLES_BEYOND, Comparison, Distribution, ModeFigures
from stack.analysis.critical_path import STAGE_LEGEND
from stack.analysis.overlap import OVERLAP_WORDS
from stack.analysis.terminal import Terminal, milliseconds, percent

_NAME = 18  # columns of the stage's name
_CELL = 8  # columns of a time
_SHARE = 7  # columns of a share
_BLOCK = len(PERCENTILES) * _CELL + _SHARE
_SHOWN_REASONS = 6


def report_text(comparison: Comparison, terminal: Terminal) -> str:
    """Returns the whole report; as many modes a table as fit, at least two."""
    if not comparison.traces:
        return "No traces: nothing to compare. Send requests through the router first."
    lines = []
    counted = [m for m in comparison.modes.values() if m.counted]
    for beside in _tables(counted, max(2, (terminal.width - _NAME) // _BLOCK)):
        lines += [*_table(beside, terminal), ""]
    if not counted:
        lines += ["No request has a complete critical path; the reasons are below.", ""]
    for mode in comparison.modes.values():
        lines += _notes(mode, terminal)
    lines += _doubts(counted, terminal)
    return "\n".join(line.rstrip() for line in lines).rstrip()


def _tables(modes: Sequence[ModeFigures], a_row: int) -> list[list[ModeFigures]]:
    """Reuse is pull with a READ before it: where it would begin a table, pull stands beside it again."""
    by_mode = {m.mode: m for m in modes}
    tables: list[list[ModeFigures]] = []
    for mode in modes:
        if not tables or len(tables[-1]) == a_row:
            again = mode.mode == names.MODE_REUSE and names.MODE_PULL in by_mode
            tables.append([by_mode[names.MODE_PULL]] if again else [])
        tables[-1].append(mode)
    return tables


def _table(modes: Sequence[ModeFigures], terminal: Terminal) -> Iterator[str]:
    yield terminal.styled("Time to first token by stage, in ms", "bold")
    titles = (f"{m.mode} ({m.counted} request{'s' * (m.counted != 1)})".rjust(_BLOCK) for m in modes)
    yield " " * _NAME + terminal.styled("".join(titles), "bold")
    yield "stage".ljust(_NAME) + "".join(_header(m) for m in modes)
    reuse = any(m.mode == names.MODE_REUSE for m in modes)
    for stage in modes[0].stages:
        if stage in REUSE_STAGES and not reuse:
            continue
        cells = "".join(_cells(m.stages[stage].time, percent(m.stages[stage].share)) for m in modes)
        idle = all(m.stages[stage].time.high == m.stages[stage].time.low == 0 for m in modes)
        line = stage.ljust(_NAME) + cells
        yield terminal.styled(line, "dim") if idle else line
    yield terminal.styled("TTFT".ljust(_NAME) + "".join(_cells(m.ttft, "100.0%") for m in modes), "bold")
    if any(m.overlapped_total and m.overlapped_total.high for m in modes):
        yield "overlapped: ran behind prefill, not part of TTFT"
        for kind in modes[0].overlapped:
            yield f"  {kind}".ljust(_NAME) + "".join(_cells(m.overlapped[kind]) for m in modes)
        yield "  any of them".ljust(_NAME) + "".join(_cells(m.overlapped_total) for m in modes)


def _header(mode: ModeFigures) -> str:
    marks = (f"p{p}{'' if mode.believed(p) else '~'}" for p in PERCENTILES)
    return "".join(mark.rjust(_CELL) for mark in marks) + "share".rjust(_SHARE)


def _cells(distribution: Distribution | None, share: str = "") -> str:
    if distribution is None:
        return " " * _BLOCK
    values = (distribution.p50, distribution.p90, distribution.p99)
    return "".join(milliseconds(v).rjust(_CELL) for v in values) + share.rjust(_SHARE)


def _notes(mode: ModeFigures, terminal: Terminal) -> Iterator[str]:
    left_out = mode.seen - mode.counted
    failed = f" ({mode.failed} failed)" if mode.failed else ""
    name = "none (refused before a mode was decided)" if mode.mode == names.MODE_NONE else mode.mode
    title = (
        f"{name}: {mode.seen} seen, {mode.counted} counted, {left_out} left out{failed}, {mode.incomplete} incomplete"
    )
    yield from _wrapped(terminal.safe(title), terminal, indent="")
    if mode.last_arrival:
        yield from _wrapped("last to arrive at the rendezvous: " + _counts(mode.last_arrival), terminal)
    yield from _tokens(mode, terminal)
    for title, reasons in (
        ("left out", mode.reasons_excluded),
        ("incomplete", mode.reasons_incomplete),
        ("anomalies", mode.anomalies),
    ):
        yield from _reasons(title, reasons, terminal)
    if mode.clock_uncertainty_ns is None and mode.counted:
        yield from _wrapped("clocks of different hosts: uncertainty unbounded for some requests", terminal)
    elif mode.clock_uncertainty_ns:
        text = f"clocks of different hosts: uncertain by up to {milliseconds(mode.clock_uncertainty_ns)} ms"
        yield from _wrapped(text, terminal)


def _tokens(mode: ModeFigures, terminal: Terminal) -> Iterator[str]:
    if mode.lookups:
        yield from _wrapped("what was kept of the turn before: " + _counts(mode.lookups), terminal)
    tokens = mode.tokens
    if tokens is not None and (mode.lookups or tokens.reused or tokens.cached):
        text = f"prompt tokens: {tokens.reused:,} reused from D, {tokens.computed:,} computed by P"
        cached = f", {tokens.cached:,} in P's own prefix cache" if tokens.cached else ""
        yield from _wrapped(text + cached, terminal)


def _reasons(title: str, reasons: Mapping[str, int], terminal: Terminal) -> Iterator[str]:
    shown = list(reasons.items())[:_SHOWN_REASONS]
    for reason, count in shown:
        yield from _wrapped(terminal.safe(f"{title}: {count} × {reason}"), terminal)  # noqa: RUF001
    if len(reasons) > len(shown):
        yield from _wrapped(f"{title}: {len(reasons) - len(shown)} more reasons (--json lists all)", terminal)


def _doubts(modes: Sequence[ModeFigures], terminal: Terminal) -> Iterator[str]:
    if any(not m.believed(p) for m in modes for p in PERCENTILES):
        needed = ", ".join(f"p{p} {SAMPLES_BEYOND * 100 // (100 - p)}" for p in PERCENTILES)
        text = f"~ too few requests to believe this percentile (needed: {needed})."
        yield from _wrapped(text, terminal, indent="", style="yellow")
    if modes:
        yield from _wrapped(_legend(modes, terminal), terminal, indent="", style="dim")
    if {MODE_ORDER[0], MODE_ORDER[1]} <= {m.mode for m in modes}:
        text = "A difference between modes may be the link's, not the protocol's: compare WRITE and READ rates first."
        yield from _wrapped(text, terminal, indent="", style="dim")


def _legend(modes: Sequence[ModeFigures], terminal: Terminal) -> str:
    kinds = [k for k in OVERLAP_WORDS if any(k in m.overlapped and m.overlapped[k].high for m in modes)]
    words = "".join(f" {kind}: {OVERLAP_WORDS[kind]}." for kind in kinds)
    return terminal.ascii(f"{STAGE_LEGEND} share: of each request's TTFT, mean over requests.{words}")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _wrapped(text: str, terminal: Terminal, indent: str = "  ", style: str = "") -> Iterable[str]:
    lines = textwrap.wrap(text, terminal.width, initial_indent=indent, subsequent_indent=indent + "  ")
    return [terminal.styled(line, style) if style else line for line in lines]
