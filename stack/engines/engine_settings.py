"""Configuration of one engine that runs by itself (``kvpath engine``): one frozen object, read once at the entry."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from stack.engines.command_line import KEPT_TTL_S, ConnectorKind, EngineSpec, Role
from stack.engines.model import MODEL_NAME, RANDOM_MODEL_NAME
from stack.engines.settings import CPU_BLOCK_SIZE, DTYPE, GPU_BLOCK_SIZE, LOOPBACK

PREFIX = "KVPATH_ENGINE_"


class EngineSettings(BaseSettings):
    """One engine of a deployment whose other parts run elsewhere. Variables: ``KVPATH_ENGINE_*``.

    It listens on loopback unless ``host`` and ``side_channel_host`` say otherwise.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    id: str | None = Field(default=None, description="as the router knows it; none: the role and -0")
    host: str = Field(default=LOOPBACK, description="where the OpenAI API listens")
    port: int = Field(default=8000, ge=1, le=65535)
    side_channel_host: str = Field(
        default=LOOPBACK, description="a name or an address of this host at which the other engine reaches it"
    )
    side_channel_port: int = Field(default=5600, ge=1, le=65534, description="NIXL's; the next one is taken too")
    kept_host: str = Field(default=LOOPBACK, description="where D says what it keeps for mode reuse")
    kept_port: int | None = Field(default=None, ge=1, le=65535, description="none: it keeps nothing")
    kept_ttl_s: int = Field(
        default=KEPT_TTL_S, ge=10, description="seconds that it keeps a turn's blocks; the router is told too"
    )
    model: str = Field(default="smollm2", description="smollm2, random, a directory, or a name that vLLM resolves")
    served_model_name: str | None = Field(default=None, description="none: the model's own")
    connector: ConnectorKind = Field(default="switch", description=", ".join(get_args(ConnectorKind)))
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="cpu, cuda")
    dtype: str | None = Field(default=None, description="none: float32 on the CPU, the model's own on a GPU")
    block_size: int | None = Field(default=None, ge=1, description="tokens; none: 32 on the CPU, 16 on a GPU")
    max_model_len: int = Field(default=4096, ge=1, description="tokens of prompt and answer together")
    tensor_parallel_size: int = Field(default=1, ge=1)
    prefix_caching: bool = Field(default=False, description="let it reuse prompt KV")
    cpu_threads: int = Field(default=1, ge=1)
    cpu_kv_cache_gib: int = Field(default=1, ge=1)
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    gpus: str | None = Field(default=None, description="CUDA_VISIBLE_DEVICES")
    kv_buffer_device: Literal["cpu", "cuda"] | None = Field(
        default=None, description="cpu: KV is moved through host memory"
    )
    nixl_backends: tuple[str, ...] = Field(default=(), description='none: UCX; ["LIBFABRIC"] on EFA')
    ucx_tls: str | None = Field(default=None, description="transports that UCX may use, such as tcp,cuda_copy,self")
    otlp_endpoint: str | None = Field(
        default=None, description="OTLP/HTTP base URL; none: the engine drops the traceparent and exports nothing"
    )
    args: tuple[str, ...] = Field(default=(), description='more options of vLLM: ["--seed", "1"]')

    @property
    def prepared_model(self) -> bool:
        """Tells whether the model is one that kvpath prepares itself."""
        return self.model in ("smollm2", "random")

    @property
    def model_name(self) -> str:
        """Returns the name that requests give."""
        prepared = {"smollm2": MODEL_NAME, "random": RANDOM_MODEL_NAME}.get(self.model)
        directory = Path(self.model).name if Path(self.model).is_dir() else self.model
        return self.served_model_name or prepared or directory


def variables_text() -> str:
    """Returns one line for each variable: its name, what it means, and its value when it is not set."""
    lines = []
    for name, field in EngineSettings.model_fields.items():
        default = "none" if field.default in (None, ()) else str(field.default)
        meaning = f"{field.description} " if field.description else ""
        lines.append(f"  {PREFIX}{name.upper():<22} {meaning}({default})")
    return "\n".join(lines)


def engine_spec(settings: EngineSettings, role: Role, model: str) -> EngineSpec:
    """Returns the engine to start. ``model`` is a directory or a name; raises ``OSError`` for an unknown host."""
    cpu = settings.device == "cpu"
    return EngineSpec(
        role=role,
        engine_id=settings.id or f"{role}-0",
        model=model,
        served_model_name=settings.model_name,
        host=settings.host,
        port=settings.port,
        side_channel_host=_address(settings.side_channel_host),
        side_channel_port=settings.side_channel_port,
        kept_host=settings.kept_host,
        kept_port=settings.kept_port if role == "decode" else None,
        kept_ttl_s=settings.kept_ttl_s,
        connector=settings.connector,
        device=settings.device,
        dtype=settings.dtype or (DTYPE if cpu else "auto"),
        load_format="dummy" if settings.model == "random" else "auto",
        block_size=settings.block_size or (CPU_BLOCK_SIZE if cpu else GPU_BLOCK_SIZE),
        max_model_len=settings.max_model_len,
        tensor_parallel_size=settings.tensor_parallel_size,
        prefix_caching=settings.prefix_caching,
        cpu_threads=settings.cpu_threads,
        cpu_kv_cache_gib=settings.cpu_kv_cache_gib,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        visible_devices=settings.gpus,
        kv_buffer_device=settings.kv_buffer_device,
        nixl_backends=settings.nixl_backends,
        ucx_tls=settings.ucx_tls,
        otlp_endpoint=settings.otlp_endpoint,
        extra_args=settings.args,
    )


def _address(host: str) -> str:
    """Resolves a name: the other engine is told what NIXL binds, and NIXL binds no names."""
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise OSError(f"side_channel_host {host!r} is no name of this host: {error.strerror}") from error
