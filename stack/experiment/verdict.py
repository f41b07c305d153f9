"""Splits the difference of two arms' TTFT into its causes, and says in sentences what that means. Pure.

Means are split, because only means are additive: every request's stages add up to its TTFT exactly, so the
differences of the stages' means add up to the difference of the mean TTFTs; percentiles of different stages belong to
different requests. ``difference`` is always second arm minus first.

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
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from connector.stages import STAGE_NAMES, UNEXPLAINED
from stack.experiment.link import Link
from stack.experiment.statistics import MIN_PAIRS, Compared, Estimate, Resampler

OUTSIDE = "outside"  # client's TTFT less the router's
PARTS: Mapping[str, tuple[str, ...]] = {
    "coordination": ("route", "handoff", "handshake", "notify"),
    "transfer": ("flight",),
    "submission": ("prepare", "submit"),
    "queueing": ("prefill_queue",),
    "rest": ("prefill", "first_step", "deliver", UNEXPLAINED, OUTSIDE),
}
assert sorted(s for stages in PARTS.values() for s in stages) == sorted((*STAGE_NAMES, UNEXPLAINED, OUTSIDE))

TRANSPORT, FASTER, NO_DIFFERENCE, TOO_FEW, NO_DATA = "transport", "faster", "no_difference", "too_few_blocks", "no_data"

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


@dataclass(frozen=True, slots=True)
class Split:
    """``parts`` add up to ``difference_ns`` exactly."""

    requests: tuple[int, int]
    difference_ns: int
    parts: tuple[Part, ...]

    @property
    def largest(self) -> Part:
        return max(self.parts, key=lambda part: abs(part.difference_ns))


def split_difference(first: ArmBlocks, second: ArmBlocks, resampler: Resampler) -> Split | None:
    """Returns the parts of the difference of mean TTFTs; ``None`` when an arm has no request with a path."""
    one, two = ([request for block in blocks for request in block] for blocks in (first, second))
    if not one or not two:
        return None
    stages = [stage for members in PARTS.values() for stage in members]
    exact = {s: _mean(request[s] for request in two) - _mean(request[s] for request in one) for s in stages}
    whole = {stage: round(value) for stage, value in exact.items()}
    difference = round(sum(exact.values()))
    whole[UNEXPLAINED] += difference - sum(whole.values())  # a few ns of rounding
    parts = tuple(
        Part(
            name,
            sum(whole[stage] for stage in members),
            *_interval(first, second, members, resampler),
            {stage: whole[stage] for stage in members},
        )
        for name, members in PARTS.items()
    )
    return Split((len(one), len(two)), difference, parts)


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
    return resampler.interval(two - one)


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """``kind``: transport, faster, no_difference, too_few_blocks or no_data. ``sentences`` begin with the headline."""

    kind: str
    faster: str | None
    sentences: tuple[str, ...]
    split: Split | None
    link: Link
    price: Price | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def headline(self) -> str:
        return self.sentences[0]

    def document(self) -> dict[str, Any]:
        found = asdict(self)
        for part in (found["split"] or {}).get("parts", ()):
            part["stages"] = dict(part["stages"])
        return {"about_transport": self.kind == TRANSPORT, **found, "sentences": list(self.sentences)}


def conclude(
    arms: tuple[str, str],
    ttft: Compared | None,
    split: Split | None,
    link: Link,
    pairs: int,
    price: Price | None = None,
    notes: Sequence[str] = (),
) -> Verdict:
    """``ttft`` compares the arms' mean TTFT; ``link`` without reasons when both arms move KV the same way."""
    from stack.experiment.sentences import price_sentences, split_sentences, transport_sentences, ttft_sentence

    if ttft is None:
        text = "There is nothing to compare: an arm has no request that counts."
        return Verdict(NO_DATA, None, (text, *transport_sentences(link)), split, link, price, tuple(notes))
    sentences = [ttft_sentence(arms, ttft, pairs)]
    faster = None
    if ttft.differs is None:
        kind = TOO_FEW
    elif ttft.differs:
        kind, faster = FASTER, arms[0] if ttft.difference.value > 0 else arms[1]
    else:
        kind = NO_DIFFERENCE
    if link.reasons:
        kind, faster = TRANSPORT, None
        sentences = [*transport_sentences(link), *sentences]
    if split is not None:
        sentences += split_sentences(arms, split, ttft.differs, pairs >= MIN_PAIRS)
    if price is not None:
        sentences += price_sentences(arms, price)
    return Verdict(kind, faster, tuple(sentences), split, link, price, tuple(notes))
