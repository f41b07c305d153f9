"""The parts of a difference add up to it exactly, whatever the numbers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.stages import STAGE_NAMES, UNEXPLAINED
from stack.experiment.split import OUTSIDE, PARTS, split_difference
from stack.experiment.statistics import Resampler

STAGES = (*STAGE_NAMES, UNEXPLAINED, OUTSIDE)
VALUES = st.lists(st.integers(-(10**9), 10**11), min_size=len(STAGES), max_size=len(STAGES))
REQUEST = VALUES.map(lambda values: dict(zip(STAGES, values, strict=True)))
BLOCKS = st.tuples(*[st.lists(REQUEST, min_size=1, max_size=2)] * 2)


def blocks_of(value, blocks=6, requests=4, seed=0, **stages):
    noise = random.Random(seed)
    return [
        [{s: stages.get(s, value) + noise.randrange(1000) for s in STAGES} for _ in range(requests)]
        for _ in range(blocks)
    ]


@settings(max_examples=25, deadline=None)
@given(BLOCKS, BLOCKS)
def test_parts_and_stages_add_up_exactly(first, second):
    split = split_difference(first, second, Resampler(2, resamples=10))
    assert sum(part.difference_ns for part in split.parts) == split.difference_ns
    assert all(sum(part.stages.values()) == part.difference_ns for part in split.parts)
    one, two = ([sum(r.values()) for block in blocks for r in block] for blocks in (first, second))
    assert split.difference_ns == pytest.approx(sum(one) / len(one) - sum(two) / len(two), abs=1)


def test_every_stage_belongs_to_one_part():
    assert sorted(stage for stages in PARTS.values() for stage in stages) == sorted(STAGES)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_differs_makes_its_part_the_largest(stage):
    split = split_difference(blocks_of(10**6, seed=1, **{stage: 51 * 10**6}), blocks_of(10**6), Resampler(6))
    assert stage in PARTS[split.largest.name]
    assert split.largest.difference_ns == pytest.approx(50 * 10**6, rel=0.01)
    assert split.largest.differs


def test_the_interval_holds_the_parts_difference():
    split = split_difference(blocks_of(10**6), blocks_of(10**6, flight=2 * 10**6, seed=1), Resampler(6))
    assert all(part.low_ns <= part.difference_ns <= part.high_ns for part in split.parts)


def test_an_arm_without_paths_cannot_be_split():
    assert split_difference([[], []], blocks_of(1, blocks=2), Resampler(2)) is None


def test_parts_that_do_not_differ_seldom_seem_to():
    found = [
        part.differs
        for seed in range(0, 60, 2)
        for part in split_difference(blocks_of(0, seed=seed), blocks_of(0, seed=seed + 1), Resampler(6, seed)).parts
    ]
    assert sum(found) / len(found) < 0.12
