"""Experiments that have a name: what is offered, in how many blocks, and what others published about it.

A preset says nothing about how engines are started, except in ``needs``, which is for people. Every one of its
figures can be replaced on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connector import names

TTFT, TPOT = "ttft", "tpot"


@dataclass(frozen=True, slots=True)
class Published:
    """A figure that somebody else measured, to be printed beside ours. Milliseconds."""

    rate: float
    input_tokens: int
    mode: str
    metric: str  # TTFT or TPOT
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Preset:
    """Every rate is combined with every input length. ``rates`` in requests/s, lengths in tokens.

    A block has ``requests``, or as many as arrive in ``block_s`` seconds when that is more; ``blocks`` is the number
    of blocks of each arm in every combination.
    """

    name: str
    summary: str
    needs: str
    rates: tuple[float, ...]
    input_tokens: tuple[int, ...]
    output_tokens: int
    requests: int
    blocks: int
    block_s: float = 0.0
    lead_in_s: float = 0.0  # at the start of a block; not counted
    warm_up: int = 1  # requests of each arm before the blocks of a combination; they are not counted
    modes: tuple[str, str] = (names.MODE_PUSH, names.MODE_PULL)
    block_size: int = 16  # tokens of a KV block, for the link probe
    kv_dtype: str | None = None  # of the KV cache, if it is not the model's own; for the link probe
    published: tuple[Published, ...] = ()


DEMO = Preset(
    name="demo",
    summary="a small model on the CPU",
    needs="a deployment of `kvpath up`",
    rates=(0.4,),
    input_tokens=(128,),
    output_tokens=12,
    requests=2,
    blocks=8,
    block_size=32,
    kv_dtype="float32",
)

SEED = Preset(
    name="seed",
    summary="the published comparison: 1k to 16k input tokens at 1 to 8 requests/s",
    needs="Qwen3-32B, one prefill and one decode engine, prefix caching off on the decode engine",
    rates=(1, 2, 4, 8),
    input_tokens=(1024, 4096, 8192, 16384),
    output_tokens=128,
    requests=16,
    block_s=30.0,
    lead_in_s=5.0,
    blocks=6,
    warm_up=4,
    published=(
        Published(8, 16384, names.MODE_PULL, TTFT, 1744.0),
        Published(8, 16384, names.MODE_PUSH, TTFT, 540.0),
        Published(8, 16384, names.MODE_PULL, TPOT, 10.4),
        Published(8, 16384, names.MODE_PUSH, TPOT, 7.0),
    ),
)

# A preset is registered here and nowhere else; its name is what `--preset` takes.
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in (DEMO, SEED)}
