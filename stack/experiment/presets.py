"""Experiments that have a name: what is offered, in how many blocks, and what others published about it.

A preset says nothing about how engines are started, except in ``needs``, which is for people. Every one of its
figures can be replaced on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connector import names

TTFT, TPOT = "ttft", "tpot"
_PUSH_CONNECTOR = "vLLM's push connector, Qwen3-32B, 1P1D on EFA"


@dataclass(frozen=True, slots=True)
class Published:
    """A figure that somebody else measured, to be printed beside ours. Milliseconds.

    ``rate`` is ``None`` where it was not said; ``subject`` is what was measured, when that is not the preset's model.
    """

    rate: float | None
    input_tokens: int
    mode: str
    metric: str  # TTFT or TPOT
    milliseconds: float
    subject: str = ""
    source: str = ""  # whose setting it is


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

    With more than one turn what arrives are conversations, ``input_tokens`` is the length of the first prompt, and
    each further turn brings ``new_tokens`` after the answer before, ``gap_s`` seconds after that has ended.
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
    turns: int = 1
    new_tokens: int = 0
    gap_s: float = 0.0
    # Whether P caches prefixes, of each pair of engines that the preset starts itself; (): it starts none.
    prefill_cache: tuple[str, ...] = ()
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
        Published(8, 16384, names.MODE_PULL, TTFT, 1744.0, source=_PUSH_CONNECTOR),
        Published(8, 16384, names.MODE_PUSH, TTFT, 540.0, source=_PUSH_CONNECTOR),
        Published(8, 16384, names.MODE_PULL, TPOT, 10.4, source=_PUSH_CONNECTOR),
        Published(8, 16384, names.MODE_PUSH, TPOT, 7.0, source=_PUSH_CONNECTOR),
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

PREFILL_CACHE_OFF, PREFILL_CACHE_ON = "off", "on"
_LOST_CONTEXT = "P's prefix cache off, to simulate lost context"
REUSE_PUBLISHED = tuple(
    Published(None, tokens, mode, TTFT, milliseconds, f"{model}, {_LOST_CONTEXT}")
    for model, tokens, pair in (("Qwen3-32B", 24576, (778.0, 460.0)), ("GLM-5-FP8", 20480, (2334.0, 702.0)))
    for mode, milliseconds in zip((names.MODE_PULL, names.MODE_REUSE), pair, strict=True)
)

REUSE = Preset(
    name="reuse",
    summary="conversations on a small model on the CPU: D's KV cache goes back to P for the next turn",
    needs="nothing: it starts its own engines, once with P's prefix cache off and once with it on",
    rates=(0.25,),
    input_tokens=(256,),
    output_tokens=12,
    requests=2,
    blocks=6,
    modes=(names.MODE_REUSE, names.MODE_PULL),
    turns=3,
    new_tokens=48,
    gap_s=2.0,
    prefill_cache=(PREFILL_CACHE_OFF, PREFILL_CACHE_ON),
    probe_device="cpu",
    block_size=32,
    kv_dtype="float32",
    published=REUSE_PUBLISHED,
)

# Prefill on one GPU, decode on the other, as it was published. The ends of the published grid come first; in the middle
# follow loads that one prefill GPU carries, and last those that only queue on it: 16k tokens of a 32B model take it
# more than a second each.
_GPU2_LOADS = (
    *((16384, 1, 4), (16384, 8, 8), (1024, 8, 16), (4096, 2, 6), (8192, 1, 4)),
    *((1024, 1, 4), (1024, 2, 6), (1024, 4, 10), (4096, 1, 4), (4096, 4, 10), (8192, 2, 6), (16384, 2, 6)),
    *((4096, 8, 12), (8192, 4, 8), (8192, 8, 8), (16384, 4, 8)),
)

GPU2 = Preset(
    name="gpu2",
    summary="a 32B model, prefill on one GPU and decode on another: 1k to 16k input tokens at 1 to 8 requests/s",
    needs="`python -m stack.experiment.gpu --all --gpus 2`, which starts its own engines",
    rates=(1, 2, 4, 8),
    input_tokens=(1024, 4096, 8192, 16384),
    output_tokens=128,
    requests=2,
    blocks=6,
    loads=tuple(PresetLoad(tokens, rate, requests) for tokens, rate, requests in _GPU2_LOADS),
    probe_device="cuda:0",
    published=SEED.published,
)

GPU2_REUSE = Preset(
    name="gpu2-reuse",
    summary="conversations on a 32B model, prefill on one GPU and decode on another: 8k to 24k tokens of context",
    needs="`python -m stack.experiment.gpu --all --gpus 2`, which starts its own engines",
    rates=(0.5,),
    input_tokens=(24576, 16384, 8192),
    output_tokens=128,
    requests=2,
    blocks=6,
    modes=(names.MODE_REUSE, names.MODE_PULL),
    turns=3,
    new_tokens=256,
    gap_s=2.0,
    probe_device="cuda:0",
    published=REUSE_PUBLISHED,
)

# A preset is registered here and nowhere else; its name is what `--preset` takes.
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in (DEMO, SEED, GPU1, REUSE, GPU2, GPU2_REUSE)}
