"""Can this host run the GPU measurements? Imports what they need, says what is missing, starts nothing."""

from __future__ import annotations

import importlib
import pkgutil
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stack.engines.command_line import EngineSpec, engine_argv


def site_check(tokenizer: Path | None) -> int:
    """Prints one line a check and returns 0 when all hold, else 1."""
    checks: dict[str, Callable[[], Any]] = {
        "python": platform.python_version,
        "packages": _versions,
        "kvpath's modules": _modules,
        "GPU": _gpu,
        "vLLM's contract": _contract,
        "connectors": _connectors,
        "engine's options": _options,
        "NIXL": _nixl,
        "flash attention": _attention,
        "torch.compile": _compile,
    }
    if tokenizer is not None:
        checks["tokenizer"] = lambda: _tokenizer(tokenizer)
    return max([_report(what, check) for what, check in checks.items()])


def _report(what: str, check: Callable[[], Any]) -> int:
    try:
        found = check()
    except Exception as error:
        print(f"FAIL {what}: {type(error).__name__}: {str(error)[:400]}", flush=True)
        return 1
    print(f"ok   {what}: {found}", flush=True)
    return 0


def _versions() -> str:
    wanted = ("torch", "vllm", "nixl", "transformers", "fastapi", "opentelemetry-sdk", "protobuf", "numpy", "scipy")
    return ", ".join(f"{name} {version(name)}" for name in wanted)


def _modules() -> str:
    found = 0
    for root in ("connector", "stack"):
        package = importlib.import_module(root)
        for module in pkgutil.walk_packages(package.__path__, f"{root}."):
            if not module.name.endswith("__main__") and module.name not in ("connector.nixl", "connector.switch"):
                importlib.import_module(module.name)
                found += 1
    return f"{found} import"


def _gpu() -> str:
    torch = importlib.import_module("torch")
    free, total = torch.cuda.mem_get_info()
    return (
        f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    )


def _contract() -> str:
    contract = importlib.import_module("connector.contract")
    missing = contract.mismatches()
    if missing:
        raise RuntimeError("; ".join(missing))
    return f"holds for vLLM {contract.vllm_version()}"


def _connectors() -> str:
    return ", ".join(importlib.import_module(f"connector.{name}").__name__ for name in ("nixl", "switch"))


def _options() -> str:
    """vLLM itself parses a CUDA engine's command line."""
    spec = EngineSpec(
        role="prefill",
        engine_id="prefill-0",
        model="m",
        served_model_name="m",
        port=1,
        side_channel_port=2,
        device="cuda",
        dtype="bfloat16",
        gpu_memory_utilization=0.42,
        gpu_kv_cache_gib=1.0,
        kv_buffer_device="cpu",
        extra_args=("--max-num-seqs", "32"),
    )
    make = importlib.import_module("vllm.entrypoints.openai.cli_args").make_arg_parser
    parser = make(importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser())
    parsed = parser.parse_args(list(engine_argv(spec)[3:]))
    config = parsed.kv_transfer_config
    return f"parsed, connector {getattr(config, 'kv_connector', None) or config['kv_connector']}"


def _nixl() -> str:
    api = importlib.import_module("nixl._api")
    agent = api.nixl_agent("site-check", api.nixl_agent_config())
    return f"{version('nixl')}, backends {', '.join(agent.backends)}"


def _attention() -> str:
    importlib.import_module("torch")
    return str(importlib.import_module("vllm.vllm_flash_attn._vllm_fa3_C").__name__)


def _compile() -> str:
    """CUDA graphs come with compilation, which needs a C compiler and Python's headers."""
    torch = importlib.import_module("torch")
    doubled = torch.compile(lambda x: torch.sin(x) * 2 + 1)(torch.zeros(64, device="cuda"))
    return f"runs, {doubled.sum().item():g} of 64"


def _tokenizer(directory: Path) -> str:
    transformers = importlib.import_module("transformers")
    return f"{len(transformers.AutoTokenizer.from_pretrained(str(directory)))} tokens"
