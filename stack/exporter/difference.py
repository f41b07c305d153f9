"""The difference of two modes' median TTFT with a bootstrap interval, in the standard library alone. Pure.

As in ``kvpath ab`` (:mod:`stack.experiment.statistics`, which needs numpy and scipy): requests of one stretch of time
are not independent, so whole stretches of time are drawn with replacement, both modes of a stretch together, and the
percentile interval is widened for their small number. A second algorithm of the same statistic; a test compares them.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95
MIN_BLOCKS = 6  # stretches of time in which something ended: fewer do not reach CONFIDENCE
MIN_SAMPLES = 10  # requests of each mode: at least five beyond the median
RESAMPLES = 499

Blocks = Mapping[int, Sequence[float]]  # values of one mode by stretch of time


@dataclass(frozen=True, slots=True)
class Difference:
    """First mode's median less the second's, and the interval, in the values' unit."""

    median: float
    low: float
    high: float


def median_difference(first: Blocks, second: Blocks, resamples: int = RESAMPLES) -> Difference | None:
    """Returns the difference; ``None`` when there is too little to say anything."""
    blocks = sorted({block for arm in (first, second) for block, values in arm.items() if values})
    arms = _ordered(first), _ordered(second)
    if len(blocks) < MIN_BLOCKS or min(map(len, arms)) < MIN_SAMPLES:
        return None
    generator = random.Random(0)  # the same data give the same interval
    drawn = []
    for _ in range(resamples):
        times = Counter(generator.choices(blocks, k=len(blocks)))
        one, two = (_weighted_median(arm, times) for arm in arms)
        if one is not None and two is not None:
            drawn.append(one - two)
    if len(drawn) * 2 < resamples:
        return None
    drawn.sort()
    tail = _tail(len(blocks))
    once = dict.fromkeys(blocks, 1)
    one, two = (_weighted_median(arm, once) for arm in arms)
    assert one is not None
    assert two is not None
    return Difference(one - two, _quantile(drawn, tail), _quantile(drawn, 1 - tail))


def _ordered(arm: Blocks) -> list[tuple[float, int]]:
    return sorted((value, block) for block, values in arm.items() for value in values)


def _weighted_median(ordered: Sequence[tuple[float, int]], times: Mapping[int, int]) -> float | None:
    """The median when every value counts as often as its block was drawn (type 7); ``None`` of nothing."""
    total = 0
    for _, block in ordered:
        total += times.get(block, 0)
    if not total:
        return None
    low_rank, high_rank = (total - 1) // 2, total // 2
    seen, low = 0, None
    for value, block in ordered:
        seen += times.get(block, 0)
        if low is None and seen > low_rank:
            low = value
        if seen > high_rank:
            return value if low is None else (low + value) / 2
    return None


def _tail(blocks: int) -> float:
    """The share of draws beyond each end ("expanded percentile", Hesterberg 2015)."""
    wide = _t_quantile(0.5 + CONFIDENCE / 2, blocks - 1) * math.sqrt(blocks / (blocks - 1))
    return NormalDist().cdf(-wide)


def _t_quantile(p: float, freedom: int) -> float:
    """Student's t by its expansion around the normal quantile (Abramowitz and Stegun 26.7.5)."""
    z, v = NormalDist().inv_cdf(p), freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    rank = (len(ordered) - 1) * share
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
