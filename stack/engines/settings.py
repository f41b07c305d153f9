"""Configuration of a local deployment (``kvpath up``, ``kvpath demo``): one frozen object, read once at the entry."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from stack.engines.command_line import KEPT_TTL_S, EngineSpec
from stack.engines.model import MODEL_NAME, RANDOM_MODEL_NAME, default_cache

MAX_DEFAULT_THREADS = 8
ConnectorChoice = Literal["switch", "push", "pull", "upstream-push", "upstream-pull"]
LOOPBACK = "127.0.0.1"
# Not bf16: slower on CPUs without its instructions, no faster for this model on those with them, and near ties
# between tokens would fall differently more often.
DTYPE = "float32"
CPU_BLOCK_SIZE, GPU_BLOCK_SIZE = 32, 16
KEPT_PORT_OFFSET = 10  # of D's kept service, from its side channel


def _half_of_the_cores() -> int:
    cores = len(os.sched_getaffinity(0))
    return max(1, min(MAX_DEFAULT_THREADS, cores // 2))


class DeploymentSettings(BaseSettings):
    """One prefill and one decode engine, a router and a trace store, all on loopback. Variables: ``KVPATH_*``."""

    model_config = SettingsConfigDict(env_prefix="KVPATH_", frozen=True, extra="forbid")

    run_dir: Path = Path("out/up")  # logs, router configuration and traces of this run
    keep_traces: bool = True  # of earlier runs in the same directory
    cache: Path = Field(default_factory=default_cache)  # where models are kept between runs
    model: Literal["smollm2", "random"] = "smollm2"
    model_dir: Path | None = None  # a prepared model directory instead of ``model``
    load_format: Literal["auto", "dummy"] | None = None  # None: dummy for the random model only
    dtype: str | None = None  # None: float32 on the CPU, the model's own on a GPU
    block_size: int | None = Field(default=None, ge=1)  # tokens; None: 32 on the CPU, 16 on a GPU
    max_model_len: int = Field(default=4096, ge=1)  # tokens
    connector: ConnectorChoice = "switch"
    prefix_caching: bool = False
    prefill_prefix_caching: bool | None = None  # of P alone; None: as prefix_caching
    engine_tracing: bool = True  # off: engines drop the traceparent and export nothing
    engine_args: tuple[str, ...] = ()  # more options of both engines
    device: Literal["cpu", "cuda"] = "cpu"
    gpu_memory_utilization: float = Field(default=0.42, gt=0, le=1)  # of each engine: two share the GPU
    gpu_kv_cache_gib: float | None = Field(default=None, gt=0)  # of each engine; None: found by profiling
    kv_buffer_device: Literal["cpu", "cuda"] | None = None  # cpu: through host memory
    ucx_tls: str | None = None  # UCX_TLS of both engines
    prefill_tensor_parallel_size: int = Field(default=1, ge=1)
    decode_tensor_parallel_size: int = Field(default=1, ge=1)
    prefill_gpus: str | None = None  # CUDA_VISIBLE_DEVICES; it takes the first ones; None: both engines share
    decode_gpus: str | None = None
    cpu_threads: int = Field(default_factory=_half_of_the_cores, ge=1)  # for each engine
    cpu_kv_cache_gib: int = Field(default=1, ge=1)  # for each engine
    router_port: int = Field(default=8000, ge=1, le=65535)
    prefill_port: int = Field(default=8100, ge=1, le=65535)
    decode_port: int = Field(default=8200, ge=1, le=65535)
    prefill_side_channel_port: int = Field(default=5600, ge=1, le=65534)
    decode_side_channel_port: int = Field(default=5610, ge=1, le=65534)
    kept_port: int | None = Field(default=None, ge=1, le=65535)  # D's, for reuse; None: its side channel's plus 10
    kept_ttl_s: int = Field(default=KEPT_TTL_S, ge=10)  # how long D keeps the blocks of a turn for the next one
    store_port: int = Field(default=4318, ge=1, le=65535)
    start_timeout_s: float = Field(default=600.0, gt=0)

    @property
    def router_url(self) -> str:
        return f"http://{LOOPBACK}:{self.router_port}"

    @property
    def store_url(self) -> str:
        return f"http://{LOOPBACK}:{self.store_port}"

    @property
    def model_name(self) -> str:
        if self.model_dir is not None:
            return self.model_dir.resolve().name
        return MODEL_NAME if self.model == "smollm2" else RANDOM_MODEL_NAME


def engine_specs(settings: DeploymentSettings, model: Path) -> tuple[EngineSpec, EngineSpec]:
    """Returns the prefill and the decode engine that serve the model in directory ``model``."""
    cpu = settings.device == "cpu"
    random = settings.model == "random" and settings.model_dir is None
    through_host = not cpu and settings.kv_buffer_device == "cpu"  # D's decoding does not fill the buffers P would read
    kept_port = None if through_host else settings.kept_port or settings.decode_side_channel_port + KEPT_PORT_OFFSET

    def spec(role: Literal["prefill", "decode"], port: int, side_channel_port: int) -> EngineSpec:
        prefills = role == "prefill"
        own_caching = settings.prefill_prefix_caching if prefills else None
        return EngineSpec(
            role=role,
            engine_id=f"{role}-0",
            model=str(model),
            served_model_name=settings.model_name,
            port=port,
            side_channel_port=side_channel_port,
            kept_port=kept_port if role == "decode" else None,
            kept_ttl_s=settings.kept_ttl_s,
            connector=settings.connector,
            device=settings.device,
            dtype=settings.dtype or (DTYPE if cpu else "auto"),
            load_format=settings.load_format or ("dummy" if random else "auto"),
            block_size=settings.block_size or (CPU_BLOCK_SIZE if cpu else GPU_BLOCK_SIZE),
            max_model_len=settings.max_model_len,
            tensor_parallel_size=(
                settings.prefill_tensor_parallel_size if prefills else settings.decode_tensor_parallel_size
            ),
            visible_devices=settings.prefill_gpus if prefills else settings.decode_gpus,
            prefix_caching=settings.prefix_caching if own_caching is None else own_caching,
            cpu_threads=settings.cpu_threads,
            cpu_kv_cache_gib=settings.cpu_kv_cache_gib,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            gpu_kv_cache_gib=settings.gpu_kv_cache_gib,
            kv_buffer_device=settings.kv_buffer_device,
            ucx_tls=settings.ucx_tls,
            otlp_endpoint=settings.store_url if settings.engine_tracing else None,
            extra_args=settings.engine_args,
        )

    return (
        spec("prefill", settings.prefill_port, settings.prefill_side_channel_port),
        spec("decode", settings.decode_port, settings.decode_side_channel_port),
    )
