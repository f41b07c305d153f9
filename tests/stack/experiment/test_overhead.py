"""The cost of tracing: turns, whole rounds, and a cost that is there or not."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from stack.experiment.client import new_session
from stack.experiment.overhead import (
    OverheadPlan,
    costs,
    measure_overhead,
    order_of,
    overhead_document,
    read_rows,
    whole_rounds,
)

VARIANTS = ("upstream", "traced", "switch")
PLAN = OverheadPlan(rounds=24, input_tokens=(512,))


def rows(cost: float, rounds: int = 24, seed: int = 0) -> list[dict]:
    noise = random.Random(seed)
    return [
        {"round": r, "variant": v, "input_tokens": 512, "prompt_tokens": 512}
        | {metric: at * (1 + (cost if v == "switch" else 0) + noise.gauss(0, 0.002)) for metric, at in METRICS.items()}
        for r in range(rounds)
        for v in VARIANTS
    ]


METRICS = {"ttft_ns": 50e6, "tpot_ns": 6e6}


def test_every_deployment_has_every_place_equally_often() -> None:
    orders = [order_of(round_, VARIANTS) for round_ in range(6)]
    assert len({tuple(order) for order in orders}) == 6
    for place in range(3):
        assert set(Counter(order[place] for order in orders).values()) == {2}


@pytest.mark.parametrize("seed", range(5))
def test_no_cost_meets_the_target(seed: int) -> None:
    found = costs(rows(0.0, seed=seed), VARIANTS, PLAN)
    assert {(cost.variant, cost.metric) for cost in found} == {
        (v, m) for v in ("traced", "switch") for m in ("ttft_ns", "tpot_ns")
    }
    assert all(cost.high is not None and cost.high < 0.01 for cost in found)


def test_a_cost_of_two_per_cent_is_found_where_it_is() -> None:
    for cost in costs(rows(0.02), VARIANTS, PLAN):
        assert cost.meets_target is not True or cost.variant == "traced"
        if cost.variant == "switch":
            assert cost.low is not None
            assert 0.01 < cost.low < 0.02 < (cost.high or 0)


def test_a_round_that_was_cut_short_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    written = [json.dumps(row) for row in rows(0.0, rounds=3)]
    file.write_text("\n".join(written[:-1]) + "\n" + written[-1][:20])
    assert whole_rounds(read_rows(file), VARIANTS, PLAN) == [0, 1]
    assert read_rows(tmp_path / "none.jsonl") == []
    assert costs([], VARIANTS, PLAN) == []
    assert overhead_document([], PLAN)["costs"] == []


async def test_rounds_that_are_there_are_not_sent_again(deployment, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    routers = dict.fromkeys(VARIANTS, deployment.url)
    async with new_session(30) as session:
        for rounds in (1, 3):
            plan = OverheadPlan(rounds=rounds, input_tokens=(64, 128), output_tokens=4)
            await measure_overhead(session, routers, "m", plan, file, print)
    found = read_rows(file)
    assert Counter(row["round"] for row in found) == {0: 6, 1: 6, 2: 6}
    assert all(row["ttft_ns"] > 0 for row in found)
