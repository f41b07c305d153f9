"""The interval in the standard library against the one with numpy and scipy, and what it is worth."""

from __future__ import annotations

import random

import pytest

from stack.experiment.statistics import MEDIAN, Resampler, compare_blocks
from stack.exporter.difference import MIN_BLOCKS, MIN_SAMPLES, median_difference


def arms(generator: random.Random, blocks: int, size: int, shift: float) -> tuple[dict, dict]:
    """Two modes whose stretches of time share a disturbance, as requests of one minute do."""
    first, second = {}, {}
    for block in range(blocks):
        level = generator.gauss(1.0, 0.1)
        first[block] = [level + shift + generator.expovariate(5) for _ in range(size)]
        second[block] = [level + generator.expovariate(5) for _ in range(size)]
    return first, second


@pytest.mark.parametrize("blocks", [8, 30])
def test_it_agrees_with_the_bootstrap_of_the_experiment(blocks):
    first, second = arms(random.Random(7), blocks, 12, -0.2)
    found = median_difference(first, second, resamples=4999)
    pairs = [list(first.values()), list(second.values())]
    other = compare_blocks(*pairs, Resampler(blocks))[MEDIAN].difference
    width = other.high - other.low
    assert found.median == pytest.approx(other.value, abs=1e-9)
    assert found.low == pytest.approx(other.low, abs=0.1 * width)
    assert found.high == pytest.approx(other.high, abs=0.1 * width)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    generator = random.Random(3)
    rounds = 150
    covered = 0
    for _ in range(rounds):
        found = median_difference(*arms(generator, 12, 6, 0.3), resamples=199)
        covered += found.low <= 0.3 <= found.high
    assert covered / rounds >= 0.93


def test_a_difference_is_found_and_none_is_not():
    generator = random.Random(6)
    apart = median_difference(*arms(generator, 20, 10, -0.5))
    assert apart.high < 0
    same = median_difference(*arms(generator, 20, 10, 0.0))
    assert same.low < 0 < same.high


def test_the_same_data_give_the_same_interval():
    data = arms(random.Random(1), 10, 5, 0.1)
    assert median_difference(*data) == median_difference(*data)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({b: [1.0] * 10 for b in range(10)}, {}),
        ({b: [1.0] * 10 for b in range(MIN_BLOCKS - 1)}, {b: [1.0] * 10 for b in range(MIN_BLOCKS - 1)}),
        ({b: [1.0] for b in range(10)}, {0: [1.0] * (MIN_SAMPLES - 1)}),
        # All of one mode in one stretch: a third of the draws would not contain it; too few would say anything
        ({b: [1.0] for b in range(40)}, {}),
    ],
)
def test_too_little_says_nothing(first, second):
    assert median_difference(first, second) is None


def test_medians_of_even_and_odd_numbers():
    first = {b: [1.0, 3.0] for b in range(MIN_SAMPLES)}  # median 2
    second = {b: [5.0] for b in range(MIN_SAMPLES)}
    assert median_difference(first, second).median == -3.0
