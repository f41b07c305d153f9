"""Which requests of an experiment count, by cell, arm and pair of blocks; the others with the reason. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from stack.experiment.load import Row
from stack.experiment.plan import Cell, Plan
from stack.experiment.split import OUTSIDE
from stack.experiment.traced import PathRow

NO_TRACE = "no trace"
FIRST_TURN = "first turn of a conversation: nothing is kept yet"


@dataclass(frozen=True, slots=True)
class Counted:
    """A request in the figures; ``path`` where its trace is good enough for the stages."""

    row: Row
    path: PathRow | None

    @property
    def stages(self) -> dict[str, int]:
        """Nanoseconds of every stage, ``unexplained`` and ``outside``; they add up to the client's TTFT."""
        assert self.path is not None
        assert self.row.ttft_ns is not None
        return {**self.path.stages, OUTSIDE: self.row.ttft_ns - self.path.ttft_ns}


@dataclass(slots=True)
class Arm:
    """One arm of a cell. ``blocks[pair]`` holds its counted requests in the order in which they were due."""

    name: str
    blocks: list[list[Counted]]
    seen: int = 0
    excluded: Counter[str] = field(default_factory=Counter)
    untraced: Counter[str] = field(default_factory=Counter)  # counted, but without stages
    incomplete: Counter[str] = field(default_factory=Counter)
    warm_up: int = 0

    def requests(self) -> Iterable[Counted]:
        return (request for block in self.blocks for request in block)

    def values(self, value: Callable[[Row], float | None]) -> list[list[float]]:
        """Returns a figure of every counted request that has it, by pair of blocks."""
        return [[v for c in block if (v := value(c.row)) is not None] for block in self.blocks]

    def traced(self) -> list[list[Counted]]:
        return [[c for c in block if c.path is not None] for block in self.blocks]


def arms_of_cells(plan: Plan, rows: Iterable[Row], paths: Mapping[str, PathRow]) -> list[tuple[Arm, Arm]]:
    """Sorts the rows of finished blocks into both arms of each cell."""
    cells = [_empty(plan) for _ in plan.cells]
    for row in sorted(rows, key=lambda row: (row.block, row.index)):
        block = plan.blocks[row.block]
        arm = cells[block.cell][block.arm]
        if block.warm_up:
            arm.warm_up += 1
            continue
        arm.seen += 1
        path = paths.get(row.trace_id)
        reason = exclusion(row, path, plan.cells[block.cell])
        if reason:
            arm.excluded[reason] += 1
            continue
        usable = path if path is not None and not path.excluded else None
        if paths and usable is None:
            arm.untraced[path.excluded if path is not None else NO_TRACE] += 1
        arm.incomplete.update(path.incomplete if path is not None else ())
        arm.blocks[block.pair].append(Counted(row, usable))
    return cells


def _empty(plan: Plan) -> tuple[Arm, Arm]:
    first, second = (Arm(name, [[] for _ in range(plan.blocks_an_arm)]) for name in plan.arms)
    return first, second


def exclusion(row: Row, path: PathRow | None, cell: Cell) -> str:
    """Says why a request is in no figure at all; "" when it is."""
    if row.error:
        return f"error: {row.error}"
    if cell.turns > 1 and row.turn == 1:
        return FIRST_TURN
    if row.scheduled_ns < cell.lead_in_s * 1e9:
        return f"lead-in: due in the first {cell.lead_in_s:g} s of a block"
    if row.fallback:
        return f"served without a transfer: {row.fallback}"
    if path is not None and path.mode and path.mode != row.mode:
        return f"asked for {row.mode}, ran as {path.mode}"
    if path is not None and path.excluded.startswith("nothing transferred"):
        return path.excluded
    return ""
