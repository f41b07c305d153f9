"""The arms of the GPU measurements that need several GPUs: prefill on some, decode on others, a 32B model.

The model has Qwen3-32B's shape and dummy weights: its texts prove nothing, and are not compared.

Which GPUs an engine sees: all, its own first (``CUDA_VISIBLE_DEVICES=0,1`` for P and ``1,0`` for D with one each), and
vLLM takes as many as its tensor-parallel size says, from the front. UCX's cuda_ipc transport opens memory of the other
engine's GPU, and finds it by its UUID; that it may be hidden from CUDA has been supported since 2019
(openucx/ucx#4137), and vLLM's own guide hides it. ``--own-gpus-only`` does so too. Neither has been run here.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stack.engines.launch import running_stack
from stack.engines.settings import DeploymentSettings
from stack.engines.shaped_model import QWEN3_32B
from stack.experiment.gpu_arms import MAX_MODEL_LEN, shared_settings
from stack.experiment.gpu_host import Say, model_of, with_engine_args
from stack.experiment.gpu_transport import compare
from stack.experiment.presets import GPU2, GPU2_REUSE, PREFILL_CACHE_OFF, PREFILL_CACHE_ON, Preset

REUSE_MODEL_LEN = 32768  # 24k tokens of context, aimed at by characters, and two further turns
KV_CACHE_GIB = 56.0  # of each GPU; one holds 59 GiB of weights beside it
START_TIMEOUT_S = 420.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Which GPUs of the host each engine uses: the first ones prefill, the next ones decode."""

    prefill: int = 1
    decode: int = 1
    own_only: bool = False

    @property
    def prefill_gpus(self) -> str:
        return self._visible(range(self.prefill), range(self.prefill, self.total))

    @property
    def decode_gpus(self) -> str:
        return self._visible(range(self.prefill, self.total), range(self.prefill))

    @property
    def total(self) -> int:
        return self.prefill + self.decode

    def _visible(self, own: Sequence[int], others: Sequence[int]) -> str:
        return ",".join(map(str, own if self.own_only else (*own, *others)))


@dataclass(frozen=True, slots=True)
class SeveralArm:
    """One deployment on several GPUs, and what is compared on it."""

    name: str
    summary: str
    base: Preset
    prefill_cache: str
    max_model_len: int
    block_size: int = 16
    ucx_tls: str | None = None
    probe_device: str = "cuda:0"

    @property
    def probe_sizes(self) -> tuple[int, ...]:
        return (self.block_size,)

    def preset(self) -> Preset:
        return self.base

    def settings(self, model: Path, run_dir: Path, placement: Placement) -> DeploymentSettings:
        return DeploymentSettings.model_validate(
            shared_settings(model, run_dir, dummy=True)
            | {
                "block_size": self.block_size,
                "max_model_len": self.max_model_len,
                "gpu_memory_utilization": 0.9,
                "gpu_kv_cache_gib": KV_CACHE_GIB,
                "prefix_caching": False,  # D's: it would answer a repeated prompt without any transfer
                "prefill_prefix_caching": self.prefill_cache == PREFILL_CACHE_ON,
                "prefill_tensor_parallel_size": placement.prefill,
                "decode_tensor_parallel_size": placement.decode,
                "prefill_gpus": placement.prefill_gpus,
                "decode_gpus": placement.decode_gpus,
                "start_timeout_s": START_TIMEOUT_S,
            }
        )


_ARMS = (
    SeveralArm("gpu2", "prefill and decode on GPUs of their own", GPU2, PREFILL_CACHE_OFF, MAX_MODEL_LEN),
    *(
        SeveralArm(
            f"gpu2-reuse-{cache}",
            f"conversations on GPUs of their own, P's prefix cache {cache}",
            GPU2_REUSE,
            cache,
            REUSE_MODEL_LEN,
        )
        for cache in (PREFILL_CACHE_OFF, PREFILL_CACHE_ON)
    ),
)
SEVERAL_ARMS: Mapping[str, SeveralArm] = {arm.name: arm for arm in _ARMS}


def placement_of(args: argparse.Namespace) -> Placement:
    """Half of the GPUs each, unless the options say otherwise; raises ``ValueError`` for more than there are."""
    half = max(1, args.gpus // 2)
    placement = Placement(args.prefill_tp or half, args.decode_tp or half, args.own_gpus_only)
    if placement.total > args.gpus:
        wanted = f"{placement.prefill} GPUs to prefill and {placement.decode} to decode"
        raise ValueError(f"{wanted} are more than --gpus {args.gpus}")
    return placement


def several_arm(args: argparse.Namespace, arm: SeveralArm, folder: Path, say: Say) -> None:
    placement = placement_of(args)
    model = model_of(args, say, weights=False, shape=QWEN3_32B)
    settings = with_engine_args(arm.settings(model, folder, placement), args.engine_arg)
    with running_stack(settings, say) as stack:
        compare(args, arm, stack, folder, say, decode_device=f"cuda:{placement.prefill}", ranks=placement.prefill)
