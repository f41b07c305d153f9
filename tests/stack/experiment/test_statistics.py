"""Intervals over blocks: exact where they can be, of the promised coverage, blind to nothing and not to noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.analysis.compare import percentile
from stack.experiment.statistics import (
    MEAN,
    MIN_PAIRS,
    STATISTICS,
    Resampler,
    compare_blocks,
    paired_test,
)
from stack.experiment.verdict import arms_differ

RECORDED = json.loads(Path(__file__).with_name("recorded_ttft.json").read_text())["blocks_us"]
BLOCKS_AN_ARM = 8


def test_the_observed_figures_are_those_of_all_requests():
    first, second = [[1.0, 5.0], [3.0]], [[2.0], [4.0, 60.0, 7.0]]
    found = compare_blocks(first, second, Resampler(2))
    assert list(found) == list(STATISTICS)
    assert (found[MEAN].first, found[MEAN].second) == (3.0, 18.25)
    assert (found["p50"].first, found["p50"].second, found["p50"].difference.value) == (3.0, 5.5, -2.5)
    assert found["p50"].ratio.value == pytest.approx(3 / 5.5)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.floats(0, 1e12), max_size=6), min_size=2, max_size=5), st.integers(0, 100))
def test_a_draws_percentiles_are_those_of_its_pooled_requests(blocks, seed):
    if not any(blocks):
        return
    resampler = Resampler(len(blocks), seed=seed, resamples=20)
    found = resampler.percentiles(blocks)
    for draw, weights in enumerate(resampler.weights):
        pooled = sorted(v for block, times in zip(blocks, weights, strict=True) for v in block * int(times))
        for p, values in found.items():
            if pooled:
                assert values[draw] == pytest.approx(percentile(pooled, p), rel=1e-9, abs=1e-6)
            else:
                assert np.isnan(values[draw])


def test_many_distinct_values_are_rounded_to_three_digits_only_while_resampling():
    blocks = [[1e6 + 7 * i for i in range(1000)] for _ in range(3)]
    blocks[1] = [value + 3 for value in blocks[1]]
    drawn = Resampler(3, resamples=50).percentiles(blocks)
    assert np.allclose(drawn[50], 1.0035e6, rtol=5e-3)
    assert compare_blocks(blocks, blocks, Resampler(3))["p50"].first == percentile(
        sorted(v for b in blocks for v in b), 50
    )


def test_values_of_zero_and_below_survive_rounding():
    blocks = [[float(i - 1000) for i in range(2000)], [0.0]]
    assert np.isfinite(Resampler(2, resamples=20).percentiles(blocks)[50]).all()


def test_an_arm_without_requests_has_no_figures():
    assert compare_blocks([[], []], [[1.0], []], Resampler(2)) == {}


def test_too_few_blocks_allow_no_conclusion():
    few = MIN_PAIRS - 1
    found = compare_blocks([[1.0]] * few, [[100.0]] * few, Resampler(few))
    assert found[MEAN].differs is None
    assert compare_blocks([[1.0]] * MIN_PAIRS, [[100.0]] * MIN_PAIRS, Resampler(MIN_PAIRS))[MEAN].differs is True


def test_one_block_has_no_interval():
    assert compare_blocks([[1.0, 2.0]], [[3.0]], Resampler(1))[MEAN].difference.low is None


def test_nothing_over_nothing_has_no_ratio():
    assert compare_blocks([[0.0]] * 6, [[0.0]] * 6, Resampler(6))["p50"].ratio is None


def test_percentiles_without_samples_beyond_them_are_not_believed():
    found = compare_blocks([[float(i) for i in range(10)]] * 6, [[1.0] * 9] * 6, Resampler(6))
    assert [found[s].believed for s in STATISTICS] == [True, True, True, False]


def simulated(random, planted: float = 0.0):
    """Two arms of eight blocks of six requests: prompts differ, pairs drift, blocks differ, requests differ."""
    arms = ([], [])
    for drift in random.normal(0, 0.05, BLOCKS_AN_ARM):
        prompts = random.gamma(8, 100 / 8, 6)
        for arm, scale in zip(arms, (1.0, 1.0 + planted), strict=True):
            block = np.exp(drift + random.normal(0, 0.025))
            arm.append(list(prompts * scale * block * np.exp(random.normal(0, 0.1, 6))))
    return arms


@pytest.mark.parametrize(("statistic", "least"), [(MEAN, 0.89), ("p50", 0.93)])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(statistic, least):
    random = np.random.default_rng(5)
    resampler = Resampler(BLOCKS_AN_ARM, seed=1, resamples=999)
    covered = 0
    for _ in range(150):
        found = compare_blocks(*simulated(random), resampler)[statistic].difference
        covered += found.low <= 0 <= found.high
    assert least <= covered / 150 <= 1.0


def test_a_plain_percentile_interval_would_cover_too_little():
    """The mutant of the test above: what the widening is for."""
    random = np.random.default_rng(5)
    resampler = Resampler(BLOCKS_AN_ARM, seed=1, resamples=999)
    covered = 0
    for _ in range(300):
        first, second = simulated(random)
        low, high = np.quantile(resampler.means(second) - resampler.means(first), [0.025, 0.975])
        covered += low <= 0 <= high
    assert covered / 300 < 0.9


def a_a_experiment(seed: int, planted: float = 0.0):
    """Two arms of one mode out of the recorded blocks: pairs keep their prompts, sides are drawn."""
    random = np.random.default_rng(seed)
    chosen = random.choice(len(RECORDED), BLOCKS_AN_ARM, replace=False)
    arms = ([], [])
    for number in chosen:
        pair = RECORDED[number]
        first = int(random.integers(2))
        arms[0].append([float(v) for v in pair[first]])
        arms[1].append([float(v) * (1 + planted) for v in pair[1 - first]])
    return arms


def differences(seed: int, planted: float = 0.0):
    return [[b - a for a, b in zip(*pair, strict=True)] for pair in zip(*a_a_experiment(seed, planted), strict=True)]


def found_different(seed: int, planted: float, resampler: Resampler) -> bool:
    """What a verdict goes by: the median's interval and the paired test."""
    ttft = compare_blocks(*a_a_experiment(seed, planted), resampler)
    return bool(arms_differ(ttft, paired_test(differences(seed, planted))))


def test_the_same_mode_twice_shows_no_difference_on_recorded_data():
    resampler = Resampler(BLOCKS_AN_ARM, seed=3, resamples=1999)
    assert sum(found_different(seed, 0.0, resampler) for seed in range(100)) <= 5  # at least 9.5 in 10 are right


def test_a_planted_difference_of_a_fifth_is_found_on_recorded_data():
    resampler = Resampler(BLOCKS_AN_ARM, seed=3, resamples=1999)
    assert sum(found_different(seed, 0.2, resampler) for seed in range(50)) >= 45


def test_the_interval_of_the_ratio_holds_what_was_planted():
    resampler = Resampler(BLOCKS_AN_ARM, seed=3, resamples=1999)
    ratios = [compare_blocks(*a_a_experiment(seed, 0.2), resampler)["p50"].ratio for seed in range(20)]
    assert sum(ratio.low < 1 / 1.2 < ratio.high for ratio in ratios) >= 17


def test_the_paired_test_counts_blocks_and_not_requests():
    """A hundred requests of two pairs of blocks prove nothing, however alike they are."""
    found = paired_test([[1.0] * 50, [1.0] * 50])
    assert (found.requests, found.blocks, found.p, found.median_difference) == (100, 2, 0.5, 1.0)


def test_the_paired_test_is_exact():
    assert paired_test([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]]).p == 2 / 64
    assert paired_test([[1.0], [-1.0]]).p == 1.0
    assert paired_test([[0.0], [0.0]]).p == 1.0


def test_the_paired_test_with_many_blocks_draws_patterns():
    assert paired_test([[float(i + 1)] for i in range(20)]).p < 0.001


def test_no_pairs_no_test():
    assert paired_test([[], []]) is None
