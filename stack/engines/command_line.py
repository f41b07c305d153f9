"""Command lines and environments of the vLLM engines, as pure functions of an :class:`EngineSpec`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Literal

from connector import names
from connector.bootstrap import traces_url
from connector.fewcores import OPTION_FEW_CORES
from connector.reuse import OPTION_HOST, OPTION_PORT
from connector.runtime import OPTION_ENDPOINT, OPTION_INSTANCE

Role = Literal["prefill", "decode"]
ConnectorKind = Literal["switch", "push", "pull", "upstream-push", "upstream-pull", "none"]

_SERVICES: dict[Role, str] = {"prefill": names.SERVICE_PREFILL, "decode": names.SERVICE_DECODE}
_KV_ROLES: dict[Role, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}
# Connector class and the module it is loaded from; no module: it is vLLM's own.
_CONNECTORS: dict[ConnectorKind, tuple[str, str | None]] = {
    "switch": ("SwitchConnector", "connector.switch"),
    "push": ("TracedPushConnector", "connector.nixl"),
    "pull": ("TracedPullConnector", "connector.nixl"),
    "upstream-push": ("NixlPushConnector", None),
    "upstream-pull": ("NixlPullConnector", None),
}
GIB = 2**30
KEPT_TTL_S = 480  # how long D keeps a turn's blocks; upstream's default too
RECOMPUTE_THRESHOLD = 64  # tokens; fewer are computed again, not read
SWITCH_CHILDREN: tuple[ConnectorKind, ...] = ("push", "pull")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One vLLM engine. ``otlp_endpoint`` is an OTLP/HTTP base URL; ``None`` turns the engine's tracing off."""

    role: Role
    engine_id: str
    model: str  # a directory, or a name that vLLM resolves
    served_model_name: str
    port: int
    side_channel_port: int  # the switch connector's pull side uses the next one as well
    host: str = "127.0.0.1"
    side_channel_host: str = "127.0.0.1"
    kept_host: str = "127.0.0.1"
    kept_port: int | None = None  # where a decode engine tells what it keeps for mode reuse; None: it keeps nothing
    kept_ttl_s: int = KEPT_TTL_S
    connector: ConnectorKind = "switch"
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: str = "auto"
    load_format: Literal["auto", "dummy"] = "auto"
    block_size: int = 32  # tokens
    max_model_len: int = 4096  # tokens
    tensor_parallel_size: int = 1
    prefix_caching: bool = False  # off: one prompt sent twice costs the same twice, as a comparison needs
    cpu_threads: int = 1
    cpu_kv_cache_gib: int = 1
    gpu_memory_utilization: float = 0.9
    gpu_kv_cache_gib: float | None = None  # instead of what profiling finds: engines that share a GPU disturb that
    kv_buffer_device: Literal["cpu", "cuda"] | None = None  # "cpu" on a GPU: KV is moved through host memory
    nixl_backends: tuple[str, ...] = ()  # empty: NIXL's UCX; LIBFABRIC on EFA
    ucx_tls: str | None = None  # UCX_TLS, the transports that UCX may choose from; None: as it chooses
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES
    otlp_endpoint: str | None = "http://127.0.0.1:4318"
    extra_args: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def ports(self) -> tuple[int, ...]:
        """Every port that the engine listens on and that a launcher should find free."""
        kept = (self.kept_port,) if self.keeps and self.kept_port else ()
        if self.connector == "none":
            return (self.port,)
        if self.connector == "switch":
            return (self.port, self.side_channel_port, self.side_channel_port + 1, *kept)
        return (self.port, self.side_channel_port, *kept)

    @property
    def keeps(self) -> bool:
        """Whether it is a decode engine that keeps blocks for mode reuse."""
        return self.role == "decode" and self.connector in ("switch", "pull") and self.kept_port is not None

    @property
    def kept_url(self) -> str:
        return f"http://{self.kept_host}:{self.kept_port}"


def engine_argv(spec: EngineSpec) -> tuple[str, ...]:
    """Returns the engine's command. The module is run, not the ``vllm`` script: the CPU wheel's script is broken."""
    argv = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", spec.model),
        *("--served-model-name", spec.served_model_name),
        *("--host", spec.host),
        *("--port", str(spec.port)),
        *("--dtype", spec.dtype),
        *("--load-format", spec.load_format),
        *("--block-size", str(spec.block_size)),
        *("--max-model-len", str(spec.max_model_len)),
        *("--tensor-parallel-size", str(spec.tensor_parallel_size)),
        "--enable-prefix-caching" if spec.prefix_caching else "--no-enable-prefix-caching",
        "--disable-uvicorn-access-log",
    ]
    if spec.device == "cpu":
        argv.append("--enforce-eager")
    else:
        argv += ["--gpu-memory-utilization", str(spec.gpu_memory_utilization)]
        if spec.gpu_kv_cache_gib is not None:
            argv += ["--kv-cache-memory-bytes", str(int(spec.gpu_kv_cache_gib * GIB))]
    if spec.connector != "none":
        argv += ["--kv-transfer-config", json.dumps(kv_transfer_config(spec))]
    if spec.otlp_endpoint is not None:  # without it vLLM drops the traceparent it is sent
        argv += ["--otlp-traces-endpoint", traces_url(spec.otlp_endpoint)]
    return (*argv, *spec.extra_args)


def kv_transfer_config(spec: EngineSpec) -> dict[str, object]:
    """Returns the value of ``--kv-transfer-config``; raises ``KeyError`` for an engine without a connector."""
    name, module = _CONNECTORS[spec.connector]
    extra = _nixl_options(spec)
    if module is not None:
        extra[OPTION_INSTANCE] = spec.engine_id
        extra[OPTION_ENDPOINT] = spec.otlp_endpoint
        if spec.device == "cpu":
            extra[OPTION_FEW_CORES] = True
    if spec.connector == "pull":
        extra |= _reuse_options(spec)
    if spec.connector == "switch":
        extra["connectors"] = [_child(spec, child) for child in SWITCH_CHILDREN]
    config = _connector(spec, name, module)
    if module is None or spec.role == "prefill":
        # D's is made anew at every start: P would take a restarted D for the one whose memory it has mapped.
        config["engine_id"] = spec.engine_id
    if module is not None and spec.role == "prefill":
        config["kv_load_failure_policy"] = "recompute"  # P's READ of what D kept may fail: it can do without
    return config | ({"kv_connector_extra_config": extra} if extra else {})


def _child(spec: EngineSpec, kind: ConnectorKind) -> dict[str, object]:
    options = _nixl_options(spec) | (_reuse_options(spec) if kind == "pull" else {})
    return _connector(spec, *_CONNECTORS[kind]) | ({"kv_connector_extra_config": options} if options else {})


def _reuse_options(spec: EngineSpec) -> dict[str, object]:
    """Upstream's transfer from D to P, which only its pull connector has, and where D says what it keeps."""
    options: dict[str, object] = {
        "bidirectional_kv_xfer": True,
        "kv_recompute_threshold": RECOMPUTE_THRESHOLD,
        "decoder_kv_blocks_ttl": spec.kept_ttl_s,
    }
    return options | ({OPTION_HOST: spec.kept_host, OPTION_PORT: spec.kept_port} if spec.keeps else {})


def _nixl_options(spec: EngineSpec) -> dict[str, object]:
    # Upstream gives each agent four UCX threads; on a few cores they only wait for one another.
    threads: dict[str, object] = {"num_threads": 0} if spec.device == "cpu" else {}
    return threads | ({"backends": list(spec.nixl_backends)} if spec.nixl_backends else {})


def _connector(spec: EngineSpec, name: str, module: str | None) -> dict[str, object]:
    config: dict[str, object] = {"kv_connector": name, "kv_role": _KV_ROLES[spec.role]}
    device = "cpu" if spec.device == "cpu" else spec.kv_buffer_device
    if device is not None:
        config["kv_buffer_device"] = device
    if module is not None:
        config["kv_connector_module_path"] = module
    return config


# Tensor parallelism over NVLink multicast can leave the GPUs of a virtual machine unusable when a process dies.
_NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}


def engine_env(spec: EngineSpec) -> dict[str, str]:
    """Returns what the engine's environment needs beyond the launcher's own."""
    env = {
        "OTEL_SERVICE_NAME": _SERVICES[spec.role],
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "2",  # s; vLLM's own exporter would hold a shutdown up for minutes
        "VLLM_NIXL_SIDE_CHANNEL_HOST": spec.side_channel_host,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(spec.side_channel_port),
        "PYTHONHASHSEED": "0",  # block hashes of different engines must agree
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if spec.device == "cpu":
        env |= {
            "VLLM_CPU_KVCACHE_SPACE": str(spec.cpu_kv_cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # two engines bound to the same cores would starve each other
            "OMP_NUM_THREADS": str(spec.cpu_threads),
        }
    else:
        env |= _NO_MULTICAST
    if spec.ucx_tls is not None:
        env["UCX_TLS"] = spec.ucx_tls
    if spec.visible_devices is not None:
        env["CUDA_VISIBLE_DEVICES"] = spec.visible_devices
    return env
