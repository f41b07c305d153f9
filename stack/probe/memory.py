"""The KV blocks of one side: host memory, or a GPU's; and the check that what should arrive did.

Each word holds its own address in the prefill side's pool (region, block, word), never 0. The decode side is zeroed
before every transfer. So a block that did not arrive, arrived elsewhere, or came from elsewhere is found.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from stack.probe.capacity import available_bytes, require
from stack.probe.errors import ProbeError
from stack.probe.plan import Plan
from stack.probe.shape import WORD


class KvMemory(Protocol):
    """Regions of equal size, one a layer, each allocated apart as vLLM does."""

    kind: str  # NIXL's name: DRAM or VRAM
    device: int
    name: str

    @property
    def bases(self) -> list[int]: ...
    def store(self, region: int, words: Any) -> None: ...
    def load(self, region: int) -> Any: ...
    def clear(self) -> None: ...


class HostMemory:
    kind, device, name = "DRAM", 0, "host memory"

    def __init__(self, regions: int, region_bytes: int) -> None:
        require(regions * region_bytes, available_bytes(), self.name)
        self._regions = [np.zeros(region_bytes // WORD, dtype=np.uint64) for _ in range(regions)]

    @property
    def bases(self) -> list[int]:
        return [region.ctypes.data for region in self._regions]

    def store(self, region: int, words: Any) -> None:
        self._regions[region][:] = words.reshape(-1)

    def load(self, region: int) -> Any:
        return self._regions[region]

    def clear(self) -> None:
        for region in self._regions:
            region.fill(0)


class CudaMemory:
    """A GPU's memory, through torch; ``index`` counts within CUDA_VISIBLE_DEVICES."""

    kind = "VRAM"

    def __init__(self, index: int, regions: int, region_bytes: int) -> None:
        try:
            torch: Any = importlib.import_module("torch")
        except ImportError:
            raise ProbeError(f"cuda:{index} needs PyTorch, which is not installed; try --device cpu") from None
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise ProbeError(f"there is no device cuda:{index} here; try --device cpu")
        self._torch, self.device = torch, index
        self.name = f"cuda:{index} ({torch.cuda.get_device_name(index)})"
        require(regions * region_bytes, torch.cuda.mem_get_info(index)[0], self.name)
        self._regions = [torch.zeros(region_bytes, dtype=torch.uint8, device=f"cuda:{index}") for _ in range(regions)]

    @property
    def bases(self) -> list[int]:
        return [region.data_ptr() for region in self._regions]

    def store(self, region: int, words: Any) -> None:
        self._regions[region].copy_(self._torch.from_numpy(words.reshape(-1).view(np.uint8)))
        self._torch.cuda.synchronize(self.device)

    def load(self, region: int) -> Any:
        return self._regions[region].cpu().numpy().view(np.uint64)

    def clear(self) -> None:
        for region in self._regions:
            region.zero_()
        self._torch.cuda.synchronize(self.device)


def allocate(device: str, plan: Plan) -> KvMemory:
    """Returns the memory for a plan on ``cpu`` or ``cuda:N``; raises :class:`ProbeError` when there is too little."""
    if device == "cpu":
        return HostMemory(plan.shape.layers, plan.region_bytes)
    return CudaMemory(int(device.partition(":")[2]), plan.shape.layers, plan.region_bytes)


def pattern(plan: Plan, region: int, blocks: Any) -> Any:
    """Returns the words (blocks by words, uint64) of these blocks of a region on the prefill side."""
    words = np.arange(1, plan.shape.block_bytes // WORD + 1, dtype=np.uint64)
    starts = (np.uint64(region) << np.uint64(48)) + (np.asarray(blocks, dtype=np.uint64) << np.uint64(24))
    return starts[:, None] + words[None, :]


def fill(memory: KvMemory, plan: Plan) -> None:
    for region in range(plan.shape.layers):
        memory.store(region, pattern(plan, region, np.arange(plan.pool)))


def arrived(memory: KvMemory, plan: Plan, sources: Sequence[Any], targets: Sequence[Any]) -> str | None:
    """Returns what is wrong after the blocks ``sources`` were moved to ``targets`` of ``memory``; ``None``: nothing.

    Both are block ids, one array a transfer.
    """
    source, target = np.concatenate(sources), np.concatenate(targets)
    untouched = np.ones(plan.pool, dtype=bool)
    untouched[target] = False
    for region in range(plan.shape.layers):
        words = memory.load(region).reshape(plan.pool, -1)
        wrong = (words[target] != pattern(plan, region, source)).any(axis=1)
        if wrong.any():
            nothing = not words[target[wrong]].any()
            what = "nothing arrived" if nothing else "other data arrived"
            return f"{what} in {int(wrong.sum())} of {len(target)} blocks of layer {region}"
        if words[untouched].any():
            return f"blocks of layer {region} changed that no transfer was meant for"
    return None
