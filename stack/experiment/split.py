"""Splits the difference of two arms' mean TTFT into its causes. Pure.

Means are split, because only means are additive: every request's stages add up to its TTFT exactly, so the
differences of the stages' means add up to the difference of the mean TTFTs; percentiles of different stages belong to
different requests. ``difference`` is always first arm minus second.

| part         | stages                               | why                                                          |
|--------------|--------------------------------------|--------------------------------------------------------------|
| coordination | route, handoff, handshake, notify    | who-talks-to-whom: what push does while P computes. ``notify``|
|              |                                      | stays in push too, and is its price here                     |
| transfer     | flight                               | bytes over the link: WRITE or READ                           |
| submission   | prepare, submit                      | work per descriptor, on P in push and on D in pull           |
| queueing     | prefill_queue                        | P's queue: longer where P's blocks are held longer           |
| rest         | prefill, first_step, deliver,        | the same work in both arms, unless something else differs;   |
|              | unexplained, outside                 | ``outside`` is the client's TTFT less the router's           |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from connector.stages import REUSE_STAGES, STAGE_NAMES, UNEXPLAINED
from stack.experiment.statistics import Compared, Estimate, Resampler

REST = "rest"  # what has no name of its own
OUTSIDE = "outside"  # client's TTFT less the router's
PARTS: Mapping[str, tuple[str, ...]] = {
    "coordination": ("route", "handoff", "handshake", "notify"),
    "transfer": ("flight",),
    "submission": ("prepare", "submit"),
    "queueing": ("prefill_queue",),
    REST: ("prefill", "first_step", "deliver", *REUSE_STAGES, UNEXPLAINED, OUTSIDE),
}
PREFILL, TAKING_BACK = "prefill", "taking_back"
REUSE_PARTS: Mapping[str, tuple[str, ...]] = {
    PREFILL: ("prefill",),
    TAKING_BACK: REUSE_STAGES,
    **{name: tuple(s for s in stages if s not in ("prefill", *REUSE_STAGES)) for name, stages in PARTS.items()},
}
for _parts in (PARTS, REUSE_PARTS):
    assert sorted(s for stages in _parts.values() for s in stages) == sorted((*STAGE_NAMES, UNEXPLAINED, OUTSIDE))

Request = Mapping[str, int]  # nanoseconds of every stage, unexplained and outside: adds up to the client's TTFT
ArmBlocks = Sequence[Sequence[Request]]  # by pair of blocks


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the difference of mean TTFTs, in whole nanoseconds; ``stages`` add up to it exactly."""

    name: str
    difference_ns: int
    low_ns: float | None
    high_ns: float | None
    stages: Mapping[str, int]

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out 0."""
        return Estimate(self.difference_ns, self.low_ns, self.high_ns).excludes(0.0)

    def reversed(self) -> Part:
        """The same part of second arm minus first."""
        low, high = (None if end is None else -end for end in (self.high_ns, self.low_ns))
        return Part(self.name, -self.difference_ns, low, high, {stage: -ns for stage, ns in self.stages.items()})


@dataclass(frozen=True, slots=True)
class Split:
    """``parts`` add up to ``difference_ns`` exactly."""

    requests: tuple[int, int]
    difference_ns: int
    parts: tuple[Part, ...]

    def part(self, name: str) -> Part | None:
        return next((part for part in self.parts if part.name == name), None)

    @property
    def largest(self) -> Part:
        return max(self.parts, key=lambda part: abs(part.difference_ns))


def split_difference(
    first: ArmBlocks, second: ArmBlocks, resampler: Resampler, causes: Mapping[str, tuple[str, ...]] = PARTS
) -> Split | None:
    """Returns the parts of the difference of mean TTFTs; ``None`` when an arm has no request with a path."""
    one, two = ([request for block in blocks for request in block] for blocks in (first, second))
    if not one or not two:
        return None
    stages = [stage for members in causes.values() for stage in members]
    exact = {s: _mean(request[s] for request in one) - _mean(request[s] for request in two) for s in stages}
    whole = {stage: round(value) for stage, value in exact.items()}
    difference = round(sum(exact.values()))
    whole[UNEXPLAINED] += difference - sum(whole.values())  # a few ns of rounding
    parts = []
    for name, members in causes.items():
        low, high = _interval(first, second, members, resampler)
        own = {stage: whole[stage] for stage in members}
        parts.append(Part(name, sum(own.values()), low, high, own))
    return Split((len(one), len(two)), difference, tuple(parts))


def _mean(values: Any) -> Fraction:
    found = list(values)
    return Fraction(sum(found), len(found))


def _interval(
    first: ArmBlocks, second: ArmBlocks, stages: Sequence[str], resampler: Resampler
) -> tuple[float, float] | tuple[None, None]:
    one, two = (
        resampler.means([[sum(request[stage] for stage in stages) for request in block] for block in blocks])
        for blocks in (first, second)
    )
    return resampler.interval(one - two)


@dataclass(frozen=True, slots=True)
class Price:
    """What push cost and gained beside TTFT. Shares are fractions, times medians in ns; ``None``: not known.

    ``registration_last``: P had finished before D's registration came. ``late_wait_ns``: how long P's finished blocks
    then waited for it. ``reserved_ns``: D's blocks stood allocated before P had finished. ``regretted``: how often a
    later choice would have taken another D, of ``choices``. ``held``: how long P kept blocks after prefill (mean).
    """

    requests: int = 0
    registration_last: float | None = None
    late_wait_ns: float | None = None
    reserved_ns: float | None = None
    choices: int = 0
    regretted: int = 0
    decode_engines: int | None = None
    held: Compared | None = None
