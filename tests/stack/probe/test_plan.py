from __future__ import annotations

import json
from typing import Any

import pytest

from stack.probe.plan import Case, Plan


def test_every_operation_and_layout_is_a_case(plan: Plan) -> None:
    assert plan.cases == (
        Case("WRITE", "contiguous", 1),
        Case("READ", "contiguous", 1),
        Case("WRITE", "fragmented", 1),
        Case("READ", "fragmented", 1),
    )


def test_a_concurrency_is_measured_beside_single_transfers(make_plan: Any) -> None:
    assert [case.transfers for case in make_plan(concurrency=3).cases] == [1] * 4 + [3] * 4


def test_the_pool_has_a_null_block_and_room_for_all_transfers(make_plan: Any) -> None:
    assert make_plan(layouts=("contiguous",)).pool == 1 + 8
    assert make_plan(concurrency=3).pool == 1 + 2 * 8 * 3
    assert make_plan().memory_bytes == 3 * 17 * 1024


def test_it_survives_the_wire(make_plan: Any) -> None:
    plan = make_plan(concurrency=2, progress_delay_us=1000, layouts=("fragmented",))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize("data", [None, [], {}, {"shape": 1}, "plan"])
def test_what_is_no_plan_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="not a plan"):
        Plan.from_json(data)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": 0},
        {"repetitions": 0},
        {"concurrency": "2"},
        {"progress_delay_us": -1},
        {"layouts": ()},
        {"layouts": ("scattered",)},
        {"timeout_s": 0},
    ],
)
def test_a_plan_that_cannot_be_is_refused(make_plan: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make_plan(**wrong)
