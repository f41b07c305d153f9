"""What is measured on one GPU that a prefill and a decode engine share: arms that keep protocol and transport apart.

Each transport arm is a deployment of its own, because transport and block size are chosen when engines start. Inside
an arm push and pull alternate on the same engines. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stack.engines.settings import ConnectorChoice, DeploymentSettings
from stack.experiment.presets import GPU1, Preset

MAX_MODEL_LEN = 20480  # 16k tokens of input are aimed at by characters: some prompts are longer
PROBE_BLOCK_SIZES = (16, 64, 128)
TRACING_MODEL_LEN = 8192
START_TIMEOUT_S = 280.0
# Fewer CUDA graphs to capture; more requests than this are never in flight here.
MAX_SEQUENCES = ("--max-num-seqs", "32")


@dataclass(frozen=True, slots=True)
class Arm:
    """One deployment that compares push and pull. ``loads``: how many of the preset's combinations are offered."""

    name: str
    summary: str
    block_size: int
    ucx_tls: str | None = None
    kv_buffer_device: str | None = None
    kv_cache_gib: float = 32.0
    loads: int | None = None
    prefill_cache: str = ""  # of the plan; prefix caching is off in these arms

    @property
    def probe_device(self) -> str:
        return "cpu" if self.kv_buffer_device == "cpu" else "cuda:0"

    @property
    def probe_sizes(self) -> tuple[int, ...]:
        """Blocks of so many tokens: in whole arms also what other sizes cost."""
        return (self.block_size,) if self.loads is not None else PROBE_BLOCK_SIZES

    def preset(self) -> Preset:
        return replace(GPU1, loads=GPU1.loads[: self.loads], block_size=self.block_size)

    def settings(self, model: Path, run_dir: Path, dummy: bool) -> DeploymentSettings:
        return DeploymentSettings.model_validate(
            shared_settings(model, run_dir, dummy)
            | {
                "block_size": self.block_size,
                "max_model_len": MAX_MODEL_LEN,
                "gpu_kv_cache_gib": self.kv_cache_gib,
                "kv_buffer_device": self.kv_buffer_device,
                "ucx_tls": self.ucx_tls,
            }
        )


_SAME_WAY = "tcp,cuda_copy,self"
# Host buffers are as large as the KV cache, once for each of the switch's two children in each of the two engines.
_HOST_KV_GIB = 8.0

_TRANSPORTS = (
    Arm("default-16", "UCX as it chooses, blocks of 16 tokens", 16),
    Arm("host-16", "both directions through host buffers", 16, kv_buffer_device="cpu", kv_cache_gib=_HOST_KV_GIB),
    Arm("tcp-16", f"both directions over UCX_TLS={_SAME_WAY}", 16, ucx_tls=_SAME_WAY, loads=2),
    Arm("default-64", "UCX as it chooses, blocks of 64 tokens", 64, loads=2),
    Arm("host-64", "host buffers, blocks of 64 tokens", 64, kv_buffer_device="cpu", kv_cache_gib=_HOST_KV_GIB, loads=2),
    Arm("tcp-64", f"UCX_TLS={_SAME_WAY}, blocks of 64 tokens", 64, ucx_tls=_SAME_WAY, loads=2),
)
ARMS: Mapping[str, Arm] = {arm.name: arm for arm in _TRANSPORTS}

# The cost of tracing: three deployments at once, so that requests alternate between them within a second.
TRACING = "tracing"
UPSTREAM = "upstream"
VARIANTS: Mapping[str, ConnectorChoice] = {UPSTREAM: "upstream-push", "traced": "push", "switch": "switch"}


def variant_settings(
    model: Path, run_dir: Path, *, upstream_tracing: bool, number: int, variant: str
) -> DeploymentSettings:
    """Settings of one of the three deployments; six engines with 14 GiB of weights each must fit on the GPU."""
    return DeploymentSettings.model_validate(
        shared_settings(model, run_dir / variant, dummy=True)
        | {
            "connector": VARIANTS[variant],
            "engine_tracing": upstream_tracing or variant != UPSTREAM,
            "block_size": 64,  # fewer descriptors: the transfer is then short, and tracing weighs more
            "max_model_len": TRACING_MODEL_LEN,
            "gpu_memory_utilization": 0.13,
            "gpu_kv_cache_gib": 3.0,
            "router_port": 8000 + number,
            "prefill_port": 8100 + number,
            "decode_port": 8200 + number,
            "prefill_side_channel_port": 5600 + 20 * number,
            "decode_side_channel_port": 5610 + 20 * number,
            "store_port": 4318 + number,
        }
    )


def shared_settings(model: Path, run_dir: Path, dummy: bool) -> dict[str, object]:
    return {
        "device": "cuda",
        "model_dir": model,
        "load_format": "dummy" if dummy else "auto",
        "dtype": "bfloat16",
        "run_dir": run_dir,
        "engine_args": MAX_SEQUENCES,
        "start_timeout_s": START_TIMEOUT_S,
    }
