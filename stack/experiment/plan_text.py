"""The plan on a terminal of 80 columns: what will be sent, block by block, and what others published for it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from stack.analysis.terminal import Terminal
from stack.experiment.plan import Block, Cell, Plan, arrivals_ns
from stack.experiment.presets import PRESETS, Published

FIGURE_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "total": "total", "tokens_per_s": "tokens/s"}


def plan_text(plan: Plan, terminal: Terminal) -> str:
    """Returns what will be sent, block by block, and what others published for it."""
    preset = PRESETS.get(plan.preset)
    first, second = plan.arms
    lines = [f"preset {plan.preset}: {preset.summary}" if preset else f"preset {plan.preset}"]
    if preset:
        lines.append(f"needs {preset.needs}")
    lines.append(f"arms {first} and {second}, {plan.blocks_an_arm} blocks each for every load, seed {plan.seed}")
    if plan.prompts is not None:
        lines.append(f"prompts: {plan.prompts.count} of {plan.prompts.name} (sha256 {plan.prompts.sha256[:12]})")
    if plan.prefill_cache:
        lines.append(f"P's prefix cache is {plan.prefill_cache}, D's is off")
    lines.append(_totals(plan))
    lines.append(f"arrivals take {duration_text(plan.seconds)}; the last answers of each block come on top")
    lines.append("")
    for number, cell in enumerate(plan.cells):
        lines += _cell_plan(plan, number, cell)
    if preset and preset.published:
        for source, figures in groupby(preset.published, key=source_text):
            lines += ["", f"published{source}:", *(f"  {published_text(p)}" for p in figures)]
    return "\n".join(wrapped(lines, terminal))


def _totals(plan: Plan) -> str:
    """How many requests are sent, and how many of them are compared if all goes well."""
    sent = [(block, plan.cells[block.cell]) for block in plan.blocks]
    requests = sum(block.requests * cell.turns for block, cell in sent)
    left_out = {"warm-up": sum(block.requests * cell.turns for block, cell in sent if block.warm_up)}
    counted = [(block, cell) for block, cell in sent if not block.warm_up]
    early = ((cell, arrivals_ns(block, cell.rate)) for block, cell in counted if cell.turns == 1)
    left_out["in the lead-in of a block"] = sum(at < cell.lead_in_s * 1e9 for cell, due in early for at in due)
    left_out["first turns"] = sum(block.requests for block, cell in counted if cell.turns > 1)
    told = ", ".join(f"{number} {what}" for what, number in left_out.items() if number)
    compared = requests - sum(left_out.values())
    return f"{len(plan.blocks)} blocks, {requests} requests, of which {compared} count" + (
        f" (not: {told})" if told else ""
    )


def _cell_plan(plan: Plan, number: int, cell: Cell) -> Iterator[str]:
    blocks = [block for block in plan.blocks if block.cell == number]
    warm_up = [block for block in blocks if block.warm_up]
    counted = [block for block in blocks if not block.warm_up]
    what = "conversations" if cell.turns > 1 else "requests"
    lead_in = f", the first {cell.lead_in_s:g} s of each not counted" if cell.lead_in_s else ""
    yield f"{cell}: {cell.requests} {what} a block{lead_in}"
    if cell.turns > 1:
        yield "  first turns find nothing that was kept: they are sent and not compared"
        low, high = cell.overlap
        yield f"  the turn before had {low:.0%} of the second turn's prompt, {high:.0%} of the last one's"
    if warm_up:
        yield f"  warm-up {_order(plan, warm_up)} ({warm_up[0].requests} {what} each)"
    yield f"  blocks {counted[0].index} to {counted[-1].index}: {_order(plan, counted)}"
    seeds = [str(block.seed) for block in counted if block.arm == 0]
    yield "  seeds of the pairs " + ", ".join(seeds)


def _order(plan: Plan, blocks: Sequence[Block]) -> str:
    """Returns ``AB BA AB``, with what A and B are said by the arms' line above."""
    pairs = groupby(blocks, key=lambda block: block.pair)
    order = " ".join("".join("AB"[block.arm] for block in members) for _, members in pairs)
    return f"{order} (A {plan.arms[0]}, B {plan.arms[1]})"


def source_text(published: Published) -> str:
    return f" for {published.source}" if published.source else ""


def published_text(published: Published) -> str:
    name = FIGURE_NAMES[published.metric]
    where = f"{published.input_tokens} tokens in"
    if published.rate is not None:
        where = f"{published.rate:g} req/s, {where}"
    if published.subject:
        where += f", {published.subject}"
    return f"{where}: {name} {published.milliseconds:g} ms {published.mode}"


def duration_text(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 120 else f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.1f} h"


def wrapped(lines: Sequence[str], terminal: Terminal) -> Iterator[str]:
    """Yields the lines, each that is too wide for the terminal as several."""
    for line in lines:
        if len(line) <= terminal.width or "\x1b" in line:
            yield line
            continue
        indent = line[: len(line) - len(line.lstrip())]
        yield from textwrap.wrap(line, terminal.width, subsequent_indent=indent + "  ")
