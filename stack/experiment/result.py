"""From the rows of a run to its result: figures with intervals, counts, verdict, for every cell. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from connector import names
from connector.stages import STAGE_NAMES, UNEXPLAINED
from stack.analysis.compare import percentile
from stack.experiment.counted import Arm, arms_of_cells
from stack.experiment.link import Link, judge_link, prediction_notes
from stack.experiment.load import Row
from stack.experiment.plan import Cell, Plan, derived_seed
from stack.experiment.presets import PRESETS, Published
from stack.experiment.run_folder import FinishedBlock
from stack.experiment.saving import saving_of
from stack.experiment.split import OUTSIDE, PARTS, REUSE_PARTS, Price, split_difference
from stack.experiment.statistics import CONFIDENCE, MEAN, Compared, PairedTest, Resampler, compare_blocks, paired_test
from stack.experiment.target import EarlyChoices
from stack.experiment.traced import Moved, PathRow
from stack.experiment.verdict import Verdict, conclude

RESULT_SCHEMA = "kvpath.experiment.result/1"
STAGE_ORDER = (*STAGE_NAMES, UNEXPLAINED, OUTSIDE)
MAX_LAG_NS = 5_000_000  # p99; beyond, and when it is visible beside TTFT, the client could not keep up
REQUEST_FIGURES: Mapping[str, Callable[[Row], float | None]] = {
    "ttft": lambda row: row.ttft_ns,
    "tpot": lambda row: row.tpot_ns,
    "total": lambda row: row.total_ns,
}

Figures = dict[str, Compared]


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that a result is made from."""

    plan: Plan
    rows: Sequence[Row]
    paths: Mapping[str, PathRow]
    blocks: Mapping[int, FinishedBlock]
    probe: Mapping[str, Any] | None = None
    decode_engines: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell. ``figures``: ttft, tpot, total, itl, tokens_per_s, requests_per_s; ``stages`` likewise by stage."""

    cell: Cell
    arms: tuple[Arm, Arm]
    figures: Mapping[str, Figures]
    stages: Mapping[str, Figures]
    paired: PairedTest | None
    verdict: Verdict
    published: tuple[Published, ...]

    def document(self) -> dict[str, Any]:
        return {
            **asdict(self.cell),
            "arms": [_arm_document(arm) for arm in self.arms],
            "figures": _plain(self.figures),
            "stages": _plain(self.stages),
            "paired_test_of_ttft": asdict(self.paired) if self.paired else None,
            "verdict": {"headline": self.verdict.headline, **self.verdict.document()},
            "published": [asdict(each) for each in self.published],
        }


@dataclass(frozen=True, slots=True)
class Result:
    """The whole experiment."""

    measured: Measured
    cells: tuple[CellResult, ...]

    def document(self) -> dict[str, Any]:
        plan = self.measured.plan
        return {
            "schema": RESULT_SCHEMA,
            "unit": "ns, and 1/s for rates",
            "confidence": CONFIDENCE,
            "preset": plan.preset,
            "arms": list(plan.arms),
            "modes": list(plan.modes),
            "blocks_an_arm": plan.blocks_an_arm,
            "seed": plan.seed,
            "prefill_cache": plan.prefill_cache or None,
            "difference": f"{plan.arms[0]} minus {plan.arms[1]}",
            "verdict": self._overall(),
            "cells": [cell.document() for cell in self.cells],
            "probe": self.measured.probe,
            "notes": list(self.measured.notes),
        }

    def _overall(self) -> dict[str, Any]:
        """The verdict of the only cell, or one sentence a cell."""
        if len(self.cells) == 1:
            only = self.cells[0].verdict
            return {"headline": only.headline, "kind": only.kind, "sentences": list(only.sentences)}
        lines = [f"{each.cell}: {each.verdict.headline}" for each in self.cells]
        kinds = sorted({each.verdict.kind for each in self.cells})
        return {"headline": lines[0], "kind": kinds[0] if len(kinds) == 1 else "mixed", "sentences": lines}


def make_result(measured: Measured) -> Result:
    cells = arms_of_cells(measured.plan, measured.rows, measured.paths)
    return Result(measured, tuple(_cell_result(number, arms, measured) for number, arms in enumerate(cells)))


def _cell_result(number: int, arms: tuple[Arm, Arm], measured: Measured) -> CellResult:
    plan = measured.plan
    resampler = Resampler(plan.blocks_an_arm, seed=derived_seed(plan.seed, number))
    figures = _figures(arms, resampler)
    traced = [[[c.stages for c in block] for block in arm.traced()] for arm in arms]
    stages = {}
    for stage in STAGE_ORDER:
        first, second = ([[request[stage] for request in block] for block in blocks] for blocks in traced)
        if compared := compare_blocks(first, second, resampler):
            stages[stage] = compared
    link, notes = _link(arms, measured)
    paired = _paired(arms)
    causes = REUSE_PARTS if names.MODE_REUSE in plan.modes else PARTS
    split = split_difference(traced[0], traced[1], resampler, causes)
    saving = saving_of(plan.modes, arms, split, plan.prefill_cache)
    doubts = [saving.contradiction] if saving is not None and saving.contradiction else []
    verdict = conclude(
        plan.arms,
        figures["ttft"],
        paired,
        split,
        link,
        plan.blocks_an_arm,
        _price(number, arms, measured, resampler),
        (*doubts, *notes, *_notes(arms, figures)),
        saving,
    )
    return CellResult(plan.cells[number], arms, figures, stages, paired, verdict, _published(plan, plan.cells[number]))


def _published(plan: Plan, cell: Cell) -> tuple[Published, ...]:
    """Those of the same load; those that are about something else stand beside every cell."""
    known = PRESETS[plan.preset].published if plan.preset in PRESETS else ()
    load = (cell.rate, cell.input_tokens)
    return tuple(p for p in known if p.subject or (p.rate, p.input_tokens) == load)


def _figures(arms: tuple[Arm, Arm], resampler: Resampler) -> dict[str, Figures]:
    def compared(values: Callable[[Arm], list[list[float]]]) -> Figures:
        return compare_blocks(values(arms[0]), values(arms[1]), resampler)

    figures = {name: compared(lambda arm, v=value: arm.values(v)) for name, value in REQUEST_FIGURES.items()}  # type: ignore[misc]
    figures["itl"] = compared(lambda arm: [[gap for c in block for gap in c.row.gaps_ns] for block in arm.blocks])
    figures["tokens_per_s"] = compared(lambda arm: _rates(arm, lambda row: row.output_tokens))
    figures["requests_per_s"] = compared(lambda arm: _rates(arm, lambda row: 1))
    return figures


def _rates(arm: Arm, amount: Callable[[Row], int]) -> list[list[float]]:
    """One rate a block: what was completed, over the time from its first request to its last token."""
    rates = []
    for block in arm.blocks:
        rows = [c.row for c in block]
        end = max((row.sent_ns + (row.total_ns or 0) for row in rows), default=0)
        rates.append([sum(map(amount, rows)) / end * 1e9] if end else [])
    return rates


def _paired(arms: tuple[Arm, Arm]) -> PairedTest | None:
    differences = []
    for one, two in zip(arms[0].blocks, arms[1].blocks, strict=True):
        second = {c.row.index: c.row.ttft_ns for c in two}
        differences.append([c.row.ttft_ns - second[c.row.index] for c in one if c.row.index in second])  # type: ignore[operator]
    return paired_test(differences)


def _link(arms: tuple[Arm, Arm], measured: Measured) -> tuple[Link, list[str]]:
    moved = [m for arm in arms for m in _moved(arm)]
    if len({mode == names.MODE_PUSH for mode in measured.plan.modes}) == 1:
        return Link("nothing", notes=("both arms move KV the same way",)), prediction_notes(measured.probe, moved)
    link = judge_link(measured.probe, moved)
    return link, [*link.notes, *prediction_notes(measured.probe, moved)]


def _moved(arm: Arm) -> list[Moved]:
    return [c.path.moved for c in arm.requests() if c.path is not None and c.path.moved is not None]


def _price(number: int, arms: tuple[Arm, Arm], measured: Measured, resampler: Resampler) -> Price | None:
    """What push cost, over all of its requests in this cell; ``None`` without an arm that pushes."""
    plan = measured.plan
    pushing = [number for number, mode in enumerate(plan.modes) if mode == names.MODE_PUSH]
    if not pushing:
        return None
    paths = [c.path for number in pushing for c in arms[number].requests() if c.path is not None]
    late = [p for p in paths if p.last_arrival == names.LAST_ARRIVAL_REGISTRATION]
    reserved = [p.reserved_ns for p in paths if p.reserved_ns is not None]
    choices = [
        measured.blocks[block.index].early_choices
        for block in plan.blocks
        if block.cell == number and block.arm in pushing and not block.warm_up and block.index in measured.blocks
    ]
    held = compare_blocks(_held(arms[0]), _held(arms[1]), resampler)
    return Price(
        requests=len(paths),
        registration_last=len(late) / len(paths) if paths else None,
        late_wait_ns=median([p.stages["handoff"] for p in late]) if late else None,
        reserved_ns=median(reserved) if reserved else None,
        choices=_total(choices).kept + _total(choices).regretted,
        regretted=_total(choices).regretted,
        decode_engines=measured.decode_engines,
        held=held.get(MEAN),
    )


def _held(arm: Arm) -> list[list[float]]:
    return [[c.path.held_ns for c in block if c.path and c.path.held_ns is not None] for block in arm.blocks]


def _total(choices: Sequence[EarlyChoices]) -> EarlyChoices:
    return EarlyChoices(sum(c.kept for c in choices), sum(c.regretted for c in choices))


def _notes(arms: tuple[Arm, Arm], figures: Mapping[str, Figures]) -> list[str]:
    notes = []
    lags = sorted(c.row.lag_ns for arm in arms for c in arm.requests())
    ttft = figures["ttft"].get("p50")
    if lags and ttft is not None:
        lag = percentile(lags, 99)
        if lag > MAX_LAG_NS and lag > min(ttft.first, ttft.second) / 50:
            notes.append(f"the client sent late: p99 of the lag is {lag / 1e6:.1f} ms, so the load was not as planned")
    if any(arm.seen for arm in arms) and not any(c.path for arm in arms for c in arm.requests()):
        notes.append("no request has a usable trace: TTFT is not split into stages")
    return notes


def _arm_document(arm: Arm) -> dict[str, Any]:
    lags = sorted(c.row.lag_ns for c in arm.requests())
    return {
        "name": arm.name,
        "seen": arm.seen,
        "counted": sum(map(len, arm.blocks)),
        "traced": sum(map(len, arm.traced())),
        "warm_up_excluded": arm.warm_up,
        "excluded": dict(arm.excluded.most_common()),
        "without_stages": dict(arm.untraced.most_common()),
        "incomplete": dict(arm.incomplete.most_common()),
        "client_lag_ns": {f"p{p}": percentile(lags, p) for p in (50, 99, 100)} if lags else None,
    }


def _plain(figures: Mapping[str, Figures]) -> dict[str, Any]:
    return {name: {statistic: asdict(c) for statistic, c in compared.items()} for name, compared in figures.items()}
