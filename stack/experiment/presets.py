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
class PresetLoad:
    """One combination that is offered as it stands; ``requests`` are a block's."""

    input_tokens: int
    rate: float
    requests: int


@dataclass(frozen=True, slots=True)
class Preset:
    """Every rate is combined with every input length. ``rates`` in requests/s, lengths in tokens.

    With ``loads``, these are offered instead, in their order, unless other rates, lengths or requests are asked for.
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
    loads: tuple[PresetLoad, ...] = ()
    warm_up: int = 1  # requests of each arm before the blocks of a combination; they are not counted
    modes: tuple[str, str] = (names.MODE_PUSH, names.MODE_PULL)
    # For a link probe on this host; without a device the engines' hosts are probed by hand (`kvpath probe`).
    probe_device: str | None = None
    block_size: int = 16  # tokens
    kv_dtype: str | None = None  # of the KV cache, if it is not the model's own
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
    probe_device="cpu",
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

# Long prompts have few requests a block: over an emulated READ (0.5 GB/s) 16k tokens take 5 s each. What matters most
# comes first, so that a run that is cut short has it.
GPU1 = Preset(
    name="gpu1",
    summary="an 8B model on one GPU that both engines share: 512 to 16k input tokens, several rates",
    needs="`kvpath up --device cuda` with a model of Qwen3-8B's shape and --max-model-len 20480",
    rates=(0.5, 2),
    input_tokens=(512, 4096, 8192, 16384),
    output_tokens=64,
    requests=2,
    blocks=6,
    loads=(
        PresetLoad(4096, 0.5, 2),
        PresetLoad(16384, 0.2, 1),
        PresetLoad(512, 4, 4),
        PresetLoad(4096, 2, 3),
        PresetLoad(8192, 0.5, 1),
    ),
    probe_device="cuda:0",
)

# A preset is registered here and nowhere else; its name is what `--preset` takes.
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in (DEMO, SEED, GPU1)}
