from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from connector.transfers import contiguous_runs
from stack.probe.layout import block_ids, descriptor_ids, descriptor_table
from stack.probe.plan import DECODE, PREFILL, Case, Plan

SIDES = (PREFILL, DECODE)


def ids_of(plan: Plan, layout: str, transfers: int = 1) -> list[Any]:
    return [block_ids(plan, Case("WRITE", layout, transfers), side) for side in SIDES]


def test_contiguous_blocks_follow_the_null_block(plan: Plan) -> None:
    prefill, decode = ids_of(plan, "contiguous")
    assert prefill[0].tolist() == decode[0].tolist() == list(range(1, 9))


@pytest.mark.parametrize("layout", ["contiguous", "fragmented"])
def test_transfers_share_no_block_and_stay_in_the_pool(make_plan: Any, layout: str) -> None:
    plan = make_plan(concurrency=3)
    for side in ids_of(plan, layout, 3):
        blocks = np.concatenate(side).tolist()
        assert len(side) == 3
        assert len(set(blocks)) == len(blocks) == 3 * 8
        assert min(blocks) >= 1
        assert max(blocks) < plan.pool


def test_a_contiguous_transfer_is_one_run_a_layer(plan: Plan) -> None:
    descriptors = [descriptor_ids(side[0], plan.pool, 3) for side in ids_of(plan, "contiguous")]
    assert contiguous_runs(*descriptors) == 3


def test_a_fragmented_transfer_has_no_neighbours_at_all(plan: Plan) -> None:
    descriptors = [descriptor_ids(side[0], plan.pool, 3) for side in ids_of(plan, "fragmented")]
    assert contiguous_runs(*descriptors) == len(descriptors[0]) == 3 * 8
    for side in descriptors:
        assert not (np.abs(np.diff(np.sort(side))) == 1).any()  # nor on one side alone, in any order


def test_the_fragmented_order_is_random_but_repeats(make_plan: Any) -> None:
    first, again, other = (ids_of(make_plan(tokens=1024, seed=seed), "fragmented") for seed in (1, 1, 2))
    for side in range(2):
        assert first[side][0].tolist() == again[side][0].tolist() != other[side][0].tolist()
        assert first[side][0].tolist() != sorted(first[side][0].tolist())


def test_descriptors_go_region_by_region() -> None:
    assert descriptor_ids(np.array([2, 1]), pool=5, regions=3).tolist() == [2, 1, 7, 6, 12, 11]
    assert descriptor_ids(np.array([2, 1]), pool=5, regions=3).dtype == np.int32


def test_the_table_lists_address_length_and_device() -> None:
    table = descriptor_table([1000, 2**63 + 8], pool=2, block_bytes=64, device=3)
    assert table.dtype == np.uint64
    assert table.tolist() == [[1000, 64, 3], [1064, 64, 3], [2**63 + 8, 64, 3], [2**63 + 72, 64, 3]]
