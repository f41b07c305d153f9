"""Block ids and NIXL descriptors, laid out as vLLM's NIXL worker does. Pure.

One region a layer; a region's descriptors are its blocks in order, and the regions follow one another:
``descriptor = region * pool + block``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stack.probe.plan import CONTIGUOUS, PREFILL, Case, Plan

FIRST_BLOCK = 1  # block 0 is vLLM's null block


def block_ids(plan: Plan, case: Case, side: str) -> list[Any]:
    """Returns the block ids (int32 arrays) of each transfer of a case, on one side.

    Contiguous: neighbours in order, as in a fresh pool. Fragmented: every second block in random order, the prefill
    side's odd, the decode side's even, so that no two descriptors can be merged: the worst that a pool becomes.
    """
    total = plan.blocks * case.transfers
    if case.layout == CONTIGUOUS:
        ids = np.arange(FIRST_BLOCK, FIRST_BLOCK + total, dtype=np.int32)
    else:
        offset = 0 if side == PREFILL else 1
        ids = FIRST_BLOCK + offset + 2 * np.arange(total, dtype=np.int32)
        np.random.default_rng([plan.seed, offset]).shuffle(ids)
    return list(ids.reshape(case.transfers, plan.blocks))


def descriptor_ids(ids: Any, pool: int, regions: int) -> Any:
    """Returns the indices (int32) into the descriptor table of these blocks in every region, region by region."""
    offsets = np.arange(regions, dtype=np.int32)[:, None] * np.int32(pool)
    return (offsets + np.asarray(ids, dtype=np.int32)[None, :]).reshape(-1)


def descriptor_table(bases: Sequence[int], pool: int, block_bytes: int, device: int) -> Any:
    """Returns the whole table: N by 3, address, length in bytes, device id (uint64)."""
    table = np.empty((len(bases), pool, 3), dtype=np.uint64)
    table[:, :, 0] = np.asarray(bases, dtype=np.uint64)[:, None] + np.arange(pool, dtype=np.uint64) * np.uint64(
        block_bytes
    )
    table[:, :, 1] = block_bytes
    table[:, :, 2] = device
    return table.reshape(-1, 3)
