"""The result on a terminal of 80 columns: the comparison with its intervals, what was left out, the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from connector import names
from connector.stages import REUSE_STAGES
from stack.analysis.compare import PERCENTILES
from stack.analysis.critical_path import STAGE_LEGEND
from stack.analysis.terminal import Terminal, milliseconds
from stack.experiment.counted import Arm
from stack.experiment.plan import Plan
from stack.experiment.plan_text import FIGURE_NAMES, published_text, source_text, wrapped
from stack.experiment.presets import Published
from stack.experiment.result import CellResult, Result
from stack.experiment.split import OUTSIDE
from stack.experiment.statistics import MEAN, MIN_PAIRS, Compared

WHOLE_CELLS = 2  # up to so many cells are printed with every table; of more, only the main figures
_SHOWN_REASONS = 5


def result_text(result: Result, terminal: Terminal) -> str:
    """Returns the comparison with its intervals, and the verdict."""
    plan = result.measured.plan
    lines = [f"P's prefix cache is {plan.prefill_cache}", ""] if plan.prefill_cache else []
    whole = len(result.cells) <= WHOLE_CELLS
    for cell in result.cells:
        lines += [terminal.styled(str(cell.cell), "bold"), *_counts(cell.arms), ""]
        lines += _table(plan, cell, whole, terminal)
        lines += ["", *_cell_end(cell, terminal), ""]
    lines += [f"note: {note}" for note in result.measured.notes]
    legend = f"difference: {plan.arms[0]} minus {plan.arms[1]}, ratio: {plan.arms[0]} over {plan.arms[1]}; "
    legend += f"= no difference (its 95 % interval holds 0); ? fewer than {MIN_PAIRS} pairs of blocks, no conclusion; "
    legend += "~ too few requests for this percentile. Times in ms. One row in twenty differs by chance."
    if whole and any(cell.stages for cell in result.cells):
        legend += f" {STAGE_LEGEND} {OUTSIDE}: the client's TTFT less the router's, the way there and back."
    return "\n".join(wrapped([*lines, legend], terminal)).rstrip()


def _cell_end(cell: CellResult, terminal: Terminal) -> Iterator[str]:
    if cell.paired is not None:
        p = cell.paired
        yield (
            f"Paired by prompt: TTFT differs by {milliseconds(p.median_difference)} ms (median of {p.requests} "
            f"pairs), p = {p.p:.3f} (signed ranks, {p.blocks} pairs of blocks flipped as wholes)"
        )
    for published in cell.published:
        same = published.input_tokens == cell.cell.input_tokens
        here = f"here {_own(cell, published)}" if same else "another load, nothing to hold against"
        yield f"published{source_text(published)}: {published_text(published)}; {here}"
    yield ""
    yield terminal.styled("Verdict", "bold")
    yield from cell.verdict.sentences
    yield from (f"note: {note}" for note in cell.verdict.notes)


def _own(cell: CellResult, published: Published) -> str:
    compared = cell.figures.get(published.metric, {})
    arms = [arm.name for arm in cell.arms]
    if published.mode not in arms or not compared:
        return "not measured"
    first = arms.index(published.mode) == 0
    shown = (f"{s} {milliseconds(c.first if first else c.second)}" for s, c in compared.items() if s in (MEAN, "p50"))
    return ", ".join(shown) + " ms"


def _counts(arms: tuple[Arm, Arm]) -> Iterator[str]:
    for arm in arms:
        counted, traced = sum(map(len, arm.blocks)), sum(map(len, arm.traced()))
        yield (
            f"{arm.name}: {arm.seen} requests, {counted} counted, {traced} with stages, {arm.warm_up} more for warm-up"
        )
        yield from _reasons("left out", arm.excluded)
        yield from _reasons("without stages", arm.untraced)
        yield from _reasons("incomplete trace", arm.incomplete)


def _reasons(title: str, reasons: Counter[str]) -> Iterator[str]:
    shown = reasons.most_common(_SHOWN_REASONS)
    yield from (f"  {title}: {count} of {reason}" for reason, count in shown)
    if len(reasons) > len(shown):
        yield f"  {title}: {len(reasons) - len(shown)} more reasons (result.json has all)"


def _table(plan: Plan, cell: CellResult, whole: bool, terminal: Terminal) -> Iterator[str]:
    first, second = plan.arms
    yield terminal.styled(f"{'':<20}{first:>9}{second:>9}{'difference':>12}  {'95 % interval':<20}{'ratio':>5}", "bold")
    for name, title in FIGURE_NAMES.items():
        rows = cell.figures.get(name, {})
        yield from _rows(title, rows if whole else {s: rows[s] for s in (MEAN, "p50") if s in rows}, name, terminal)
    if whole:
        reuse = names.MODE_REUSE in plan.modes
        yield from _stage_rows({n: s for n, s in cell.stages.items() if reuse or n not in REUSE_STAGES}, terminal)


def _stage_rows(stages: Mapping[str, Mapping[str, Compared]], terminal: Terminal) -> Iterator[str]:
    idle = [name for name, rows in stages.items() if all(c.first == c.second == 0 for c in rows.values())]
    shown = {name: rows for name, rows in stages.items() if name not in idle}
    if shown:
        yield terminal.styled("stages of TTFT", "bold")
    for name, rows in shown.items():
        yield from _rows(name, {s: rows[s] for s in (MEAN, *(f"p{p}" for p in PERCENTILES))}, "stage", terminal)
    if idle:
        yield "0 in both: " + ", ".join(idle)


def _rows(title: str, rows: Mapping[str, Compared], metric: str, terminal: Terminal) -> Iterator[str]:
    number = (lambda v: f"{v:.3g}") if metric.endswith("_per_s") else milliseconds
    for statistic, c in rows.items():
        d = c.difference
        interval = "" if d.low is None or d.high is None else f"{number(d.low)} to {number(d.high)}"
        ratio = f"{c.ratio.value:.2f}" if c.ratio is not None and 0.01 <= c.ratio.value < 100 else ""
        mark = " ?" if c.differs is None else "" if c.differs else " ="
        name = f"{title} {statistic}{'' if c.believed else '~'}"
        line = (
            f"{name:<20}{number(c.first):>9}{number(c.second):>9}{number(d.value):>12}  {interval:<20}{ratio:>5}{mark}"
        )
        yield line.rstrip() if c.differs is not False else terminal.styled(line.rstrip(), "dim")
