"""The plan: ABBA order, seeds of pairs, arrivals, what cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.experiment.plan import (
    WARM_UP,
    Changes,
    PlanError,
    PromptsFile,
    arrivals_ns,
    make_plan,
    plan_from,
)
from stack.experiment.presets import DEMO, PRESETS, REUSE, SEED


def order(plan, cell=0):
    return [(block.pair, block.arm) for block in plan.blocks if block.cell == cell and not block.warm_up]


def test_blocks_come_in_abba_order():
    plan = make_plan(DEMO, Changes(blocks=4))
    assert order(plan) == [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1), (3, 1), (3, 0)]


def test_every_cell_begins_with_a_warm_up_of_both_arms():
    plan = make_plan(SEED)
    for number in range(len(plan.cells)):
        first = [block for block in plan.blocks if block.cell == number][:2]
        assert [(b.pair, b.arm, b.warm_up, b.requests) for b in first] == [(WARM_UP, 0, True, 4), (WARM_UP, 1, True, 4)]


def test_the_blocks_of_a_pair_share_their_seed_and_nothing_else_does():
    plan = make_plan(SEED)
    pairs: dict[tuple[int, int], set[int]] = {}
    for block in plan.blocks:
        pairs.setdefault((block.cell, block.pair), set()).add(block.seed)
    assert all(len(seeds) == 1 for seeds in pairs.values())
    assert len(set.union(*pairs.values())) == len(pairs)


def test_indexes_are_positions():
    assert [block.index for block in make_plan(SEED).blocks] == list(range(len(make_plan(SEED).blocks)))


def test_every_rate_meets_every_length():
    plan = make_plan(SEED, Changes(rates=(1, 2), input_tokens=(10, 20), requests=5))
    assert [(c.rate, c.input_tokens, c.requests) for c in plan.cells] == [
        (1, 10, 5),
        (2, 10, 5),
        (1, 20, 5),
        (2, 20, 5),
    ]


def test_blocks_of_a_preset_last_their_time():
    cells = make_plan(SEED).cells
    assert {(c.rate, c.requests, c.lead_in_s) for c in cells} == {(1, 30, 5), (2, 60, 5), (4, 120, 5), (8, 240, 5)}


def test_the_arms_of_an_a_a_experiment_have_letters():
    assert make_plan(DEMO, Changes(modes=("push", "push"))).arms == ("push A", "push B")
    assert make_plan(DEMO).arms == ("push", "pull")


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_a_plan_survives_its_folder(preset):
    file = PromptsFile("p.jsonl", "ab", 3) if preset.turns == 1 else None
    plan = make_plan(preset, Changes(prompts=file, prefill_cache="off"))
    assert plan_from(json.loads(json.dumps(plan.document()))) == plan


@pytest.mark.parametrize("document", [{}, {"prompts": None, "modes": ["push", "pull"]}, {"prompts": None, "more": 1}])
def test_what_is_no_plan(document):
    with pytest.raises(PlanError, match="not a plan"):
        plan_from(document)


@pytest.mark.parametrize(
    "changes",
    [
        {"blocks": 0},
        {"rates": (0.0,)},
        {"rates": (float("nan"),)},
        {"rates": (float("inf"),)},
        {"input_tokens": (0,)},
        {"output_tokens": 0},
        {"requests": 0},
        {"requests": -3},
        {"prompts": PromptsFile("p", "", 1), "input_tokens": (5,)},
    ],
)
def test_what_makes_no_sense(changes):
    with pytest.raises(PlanError):
        make_plan(DEMO, Changes(**changes))


def test_arrivals_are_a_poisson_process():
    plan = make_plan(DEMO, Changes(requests=4000))
    arrivals = arrivals_ns(plan.blocks[-1], 8.0)
    gaps = [b - a for a, b in pairwise(arrivals)]
    assert arrivals[0] == 0
    assert fmean(gaps) == pytest.approx(125e6, rel=0.06)
    # An exponential distribution's standard deviation is its mean, and 63 % of it lies below.
    assert sum(gap < 125e6 for gap in gaps) / len(gaps) == pytest.approx(0.632, abs=0.03)


@given(st.integers(1, 50), st.floats(0.01, 1000))
def test_arrivals_are_ordered_and_repeatable(requests, rate):
    block = replace(make_plan(DEMO).blocks[-1], requests=requests)
    arrivals = arrivals_ns(block, rate)
    assert arrivals == sorted(arrivals) == arrivals_ns(block, rate)
    assert len(arrivals) == requests


def test_both_blocks_of_a_pair_have_the_same_arrivals():
    plan = make_plan(SEED)
    one, two = plan.blocks[2:4]
    assert one.pair == two.pair
    assert arrivals_ns(one, 8) == arrivals_ns(two, 8) != arrivals_ns(plan.blocks[4], 8)


def test_another_seed_is_another_plan():
    assert make_plan(DEMO, Changes(seed=2)).blocks[2].seed != make_plan(DEMO).blocks[2].seed


def test_conversations_grow_and_take_their_gaps():
    plan = make_plan(REUSE, Changes(turns=4, new_tokens=30, gap_s=5.0, requests=2, blocks=1))
    (cell,) = plan.cells
    assert cell.longest_input == 256 + 3 * (12 + 30)
    assert plan.conversations
    assert cell.overlap == (268 / 298, (256 + 3 * 12 + 2 * 30) / (256 + 3 * 12 + 3 * 30))
    assert plan.seconds == sum(block.requests / 0.25 + 15.0 for block in plan.blocks)


def test_a_plan_of_before_there_were_conversations_is_still_read():
    document = json.loads(json.dumps(make_plan(DEMO).document()))
    for cell in document["cells"]:
        for name in ("turns", "new_tokens", "gap_s"):
            del cell[name]
    del document["prefill_cache"]
    assert plan_from(document) == make_plan(DEMO)
