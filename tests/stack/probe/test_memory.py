from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stack.probe import memory as memory_module
from stack.probe.errors import ProbeError
from stack.probe.layout import block_ids
from stack.probe.memory import HostMemory, allocate, arrived, fill, pattern
from stack.probe.plan import DECODE, PREFILL, Case, Plan

CASE = Case("WRITE", "fragmented", 1)


def moved(plan: Plan) -> tuple[HostMemory, list[Any], list[Any]]:
    """The decode side's memory after a transfer, with the ids of both sides."""
    source, target = (HostMemory(plan.shape.layers, plan.region_bytes) for _ in range(2))
    fill(source, plan)
    ids = [block_ids(plan, CASE, side) for side in (PREFILL, DECODE)]
    for region in range(plan.shape.layers):
        words = target.load(region).reshape(plan.pool, -1)
        words[ids[1][0]] = source.load(region).reshape(plan.pool, -1)[ids[0][0]]
    return target, *ids


def test_a_transfer_that_did_everything_passes(plan: Plan) -> None:
    assert arrived(moved(plan)[0], plan, *moved(plan)[1:]) is None


def test_a_transfer_that_moved_nothing_is_found(plan: Plan) -> None:
    memory, source, target = moved(plan)
    memory.clear()
    assert arrived(memory, plan, source, target) == "nothing arrived in 8 of 8 blocks of layer 0"


def test_one_wrong_word_is_found(plan: Plan) -> None:
    memory, source, target = moved(plan)
    memory.load(2).reshape(plan.pool, -1)[target[0][5], 17] += np.uint64(1)
    assert arrived(memory, plan, source, target) == "other data arrived in 1 of 8 blocks of layer 2"


def test_swapped_blocks_are_found(plan: Plan) -> None:
    memory, source, target = moved(plan)
    assert arrived(memory, plan, [source[0][::-1]], target) is not None


def test_swapped_layers_are_found(plan: Plan) -> None:
    memory, source, target = moved(plan)
    first = memory.load(0).copy()
    memory.store(0, memory.load(1))
    memory.store(1, first)
    assert arrived(memory, plan, source, target) is not None


def test_a_block_that_nobody_meant_is_found(plan: Plan) -> None:
    memory, source, target = moved(plan)
    memory.load(1)[0] = 1
    assert arrived(memory, plan, source, target) == "blocks of layer 1 changed that no transfer was meant for"


def test_no_two_words_of_the_pattern_are_alike_and_none_is_zero(plan: Plan) -> None:
    words = np.concatenate([pattern(plan, r, np.arange(plan.pool)).reshape(-1) for r in range(plan.shape.layers)])
    assert len(np.unique(words)) == len(words)
    assert words.all()


def test_too_little_memory_is_said_before_it_is_taken(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "available_bytes", lambda: plan.memory_bytes)
    with pytest.raises(ProbeError, match="fewer --tokens"):
        allocate("cpu", plan)
