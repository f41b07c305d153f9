"""Percentiles, differences and their uncertainty over blocks. Needs numpy and scipy (the extra ``experiment``).

Requests of one block are not independent (they queue behind each other, they share a minute of the machine), blocks
nearly are. So the bootstrap draws *pairs of blocks* with replacement, both arms of a pair together, pools the requests
of the drawn blocks and computes the statistic again. The interval is the percentile interval, widened for the small
number of blocks (Hesterberg 2015, "expanded percentile": its normal quantile is replaced by the t quantile times
sqrt(n / (n - 1))); without that, intervals from eight pairs cover 87 % instead of 95 % (the test simulates both).
With fewer than :data:`MIN_PAIRS` pairs the extremes of the blocks do not reach 95 %: no conclusion is drawn.

A difference whose interval holds 0 is "no difference". All statistics of a cell come from the same draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import stats

from stack.analysis.compare import PERCENTILES, believed, percentile

CONFIDENCE = 0.95
MIN_PAIRS = 6
RESAMPLES = 4999
MEAN, MEDIAN = "mean", "p50"
STATISTICS = (MEAN, *(f"p{p}" for p in PERCENTILES))
_DISTINCT = 500  # values kept apart while resampling; more are rounded to three digits first
_CHUNK = 500  # resamples at a time: bounds the memory
_EXACT_FLIPS = 12  # pairs of blocks up to which every pattern of signs is tried

Blocks = Sequence[Sequence[float]]  # values of one arm, by pair of blocks
Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its interval at :data:`CONFIDENCE`; both ends are ``None`` when there is nothing to resample."""

    value: float
    low: float | None = None
    high: float | None = None

    def excludes(self, value: float) -> bool:
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Compared:
    """One statistic of both arms. ``difference`` is first minus second (push minus pull, as everywhere), ``ratio``
    first over second.

    ``differs`` is ``None`` when there are too few pairs of blocks to say. ``believed``: enough samples lie beyond
    the percentile.
    """

    first: float
    second: float
    difference: Estimate
    ratio: Estimate | None
    differs: bool | None
    believed: bool


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Wilcoxon's signed-rank statistic over requests with the same prompt, flipped by whole pairs of blocks.

    ``p`` is the share of sign patterns that give at least as large a rank sum: exact up to 12 pairs of blocks.
    """

    requests: int
    blocks: int
    median_difference: float
    p: float


class Resampler:
    """The draws of one cell: how often each pair of blocks comes up in each resample."""

    def __init__(self, pairs: int, seed: int = 0, resamples: int = RESAMPLES) -> None:
        self.pairs = pairs
        random = np.random.default_rng(seed)
        self.weights: Array = random.multinomial(pairs, [1 / pairs] * pairs, size=resamples).astype(float)

    def interval(self, resampled: Array) -> tuple[float, float] | tuple[None, None]:
        """Returns the widened percentile interval of a statistic over the draws."""
        found = resampled[np.isfinite(resampled)]
        if self.pairs < 2 or found.size < resampled.size / 2:
            return None, None
        low, high = np.quantile(found, [self._tail, 1 - self._tail])
        return float(low), float(high)

    @cached_property
    def _tail(self) -> float:
        wide = stats.t.ppf(0.5 + CONFIDENCE / 2, self.pairs - 1) * (self.pairs / (self.pairs - 1)) ** 0.5
        return float(stats.norm.cdf(-wide))

    def means(self, blocks: Blocks) -> Array:
        """Returns the pooled mean of every draw; NaN for a draw without any value."""
        sums = np.array([float(np.sum(block)) for block in blocks])
        counts = np.array([len(block) for block in blocks], dtype=float)
        with np.errstate(invalid="ignore", divide="ignore"):
            return (self.weights @ sums) / (self.weights @ counts)

    def percentiles(self, blocks: Blocks) -> dict[int, Array]:
        """Returns the pooled percentiles (type 7) of every draw."""
        values, counts = _table(blocks)
        found: dict[int, list[Array]] = {p: [] for p in PERCENTILES}
        for weights in self._chunks():
            cumulated = np.cumsum(weights @ counts, axis=1)
            for p, parts in found.items():
                parts.append(_weighted_percentile(values, cumulated, p))
        return {p: np.concatenate(parts) for p, parts in found.items()}

    def _chunks(self) -> Iterator[Array]:
        for start in range(0, len(self.weights), _CHUNK):
            yield self.weights[start : start + _CHUNK]


def _table(blocks: Blocks) -> tuple[Array, Array]:
    """Returns the distinct values, ascending, and how often each block has each of them."""
    arrays = [np.asarray(block, dtype=float) for block in blocks]
    pooled = np.concatenate(arrays)
    if np.unique(pooled).size > _DISTINCT:
        arrays = [_rounded(array) for array in arrays]
        pooled = np.concatenate(arrays)
    values = np.unique(pooled)
    counts = np.zeros((len(blocks), values.size))
    for row, array in zip(counts, arrays, strict=True):
        np.add.at(row, np.searchsorted(values, array), 1)
    return values, counts


def _rounded(array: Array) -> Array:
    with np.errstate(divide="ignore"):
        scale = 10.0 ** (np.floor(np.log10(np.abs(array))) - 2)
    scale[~np.isfinite(scale) | (scale == 0)] = 1
    return np.round(array / scale) * scale


def _weighted_percentile(values: Array, cumulated: Array, p: int) -> Array:
    total = cumulated[:, -1]
    rank = np.maximum(total - 1, 0) * p / 100
    below = np.floor(rank)
    above = np.minimum(below + 1, np.maximum(total - 1, 0))

    def at(position: Array) -> Array:
        index = np.sum(cumulated <= position[:, None], axis=1)
        return values[np.minimum(index, values.size - 1)]

    low = at(below)
    found = low + (at(above) - low) * (rank - below)
    return np.where(total > 0, found, np.nan)


def compare_blocks(first: Blocks, second: Blocks, resampler: Resampler) -> dict[str, Compared]:
    """Returns every statistic of :data:`STATISTICS`; empty when an arm has no value at all."""
    one, two = (sorted(value for block in blocks for value in block) for blocks in (first, second))
    if not one or not two:
        return {}
    drawn = [
        {MEAN: resampler.means(blocks), **{f"p{p}": d for p, d in resampler.percentiles(blocks).items()}}
        for blocks in (first, second)
    ]
    observed = [
        {MEAN: float(np.mean(pooled)), **{f"p{p}": float(percentile(pooled, p)) for p in PERCENTILES}}
        for pooled in (one, two)
    ]
    samples = min(len(one), len(two))
    return {
        name: _compared(
            (observed[0][name], observed[1][name]),
            (drawn[0][name], drawn[1][name]),
            resampler,
            name == MEAN or believed(samples, int(name[1:])),
        )
        for name in STATISTICS
    }


def _compared(
    observed: tuple[float, float], drawn: tuple[Array, Array], resampler: Resampler, enough: bool
) -> Compared:
    first, second = observed
    difference = Estimate(first - second, *resampler.interval(drawn[0] - drawn[1]))
    ratio = None
    if first > 0 and second > 0:
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = Estimate(first / second, *resampler.interval(drawn[0] / drawn[1]))
    differs = difference.excludes(0.0) if resampler.pairs >= MIN_PAIRS else None
    return Compared(first, second, difference, ratio, differs, enough)


def paired_test(differences: Blocks, seed: int = 0) -> PairedTest | None:
    """Tests whether paired requests differ; ``differences`` are first minus second, by pair of blocks.

    Flipping the signs of single requests would take them for independent, so those of a pair of blocks flip
    together: under "no difference" the two blocks of a pair could as well have been the other way round.
    """
    blocks = [np.asarray(block, dtype=float) for block in differences if len(block)]
    pooled = np.concatenate(blocks) if blocks else np.array([])
    if not pooled.size:
        return None
    sizes = [len(block) for block in blocks]
    ranks = np.where(pooled == 0, 0.0, stats.rankdata(np.abs(pooled))) * np.sign(pooled)
    sums = np.array([part.sum() for part in np.split(ranks, np.cumsum(sizes)[:-1])])
    if len(blocks) <= _EXACT_FLIPS:
        patterns = np.array(np.meshgrid(*[[1, -1]] * len(blocks))).reshape(len(blocks), -1).T
        extra = 0
    else:
        patterns = np.random.default_rng(seed).choice([1, -1], size=(RESAMPLES, len(blocks)))
        extra = 1  # the pattern that was observed
    observed = abs(sums.sum())
    as_large = np.abs(patterns @ sums) >= observed * (1 - 1e-12)
    p = (int(as_large.sum()) + extra) / (len(patterns) + extra)
    return PairedTest(int(pooled.size), len(blocks), float(np.median(pooled)), float(p))
