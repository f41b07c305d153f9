"""start both engines, the router and the trace store, and keep them until Ctrl-C

The same deployment as the demo's, without its requests.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_settings import SettingsError

from connector import names
from stack.engines.command_line import EngineSpec
from stack.engines.launch import STORE_FILE, router_config, running_stack
from stack.engines.model import ModelError
from stack.engines.processes import DeploymentError, interrupt_on_termination
from stack.engines.settings import KEPT_PORT_OFFSET, ConnectorChoice, DeploymentSettings
from stack.own_command import own_command
from stack.router.settings import RouterSettings, configured_modes
from stack.settings_error import one_line

EXIT_FAILED, EXIT_USAGE = 1, 2
_PORTS = {
    "router_port": "the router",
    "prefill_port": "the prefill engine",
    "decode_port": "the decode engine",
    "prefill_side_channel_port": "the prefill engine's NIXL side channel (and the next one)",
    "decode_side_channel_port": "the decode engine's NIXL side channel (and the next one)",
    "kept_port": "the decode engine, which says there what it keeps for reuse",
    "store_port": "the trace store",
}
_KEPT_PORT_DEFAULT = f"--decode-side-channel-port + {KEPT_PORT_OFFSET}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_deployment_arguments(parser, run_dir=Path("out/up"))
    parser.add_argument("--model", choices=("smollm2", "random"), help="random: two layers, for tests (smollm2)")
    parser.add_argument("--prefix-caching", action="store_true", default=None, help="let engines reuse prompt KV")
    _add_engine_arguments(parser.add_argument_group("the engines"))


def _add_engine_arguments(group: Any) -> None:
    connectors = get_args(ConnectorChoice)
    group.add_argument("--device", choices=("cpu", "cuda"), help="cuda: both engines on this host's first GPU (cpu)")
    group.add_argument("--model-dir", type=Path, metavar="DIR", help="serve this model directory instead of --model")
    group.add_argument("--load-format", choices=("auto", "dummy"), help="dummy: random weights, for timing only")
    group.add_argument("--dtype", help="of weights and KV cache (cpu: float32; cuda: the model's own)")
    group.add_argument("--block-size", type=int, metavar="TOKENS", help="of a KV block (cpu: 32; cuda: 16)")
    group.add_argument("--max-model-len", type=int, metavar="TOKENS", help="prompt and answer together (4096)")
    group.add_argument("--connector", choices=connectors, help=f"({connectors[0]})")
    group.add_argument("--gpu-memory-utilization", type=float, metavar="SHARE", help="of each engine (0.42)")
    group.add_argument("--gpu-kv-cache-gib", type=float, metavar="GIB", help="of each engine, instead of profiling")
    group.add_argument("--kv-buffer-device", choices=("cpu", "cuda"), help="cpu: move KV through host memory")
    group.add_argument("--ucx-tls", metavar="LIST", help="transports that UCX may use, such as tcp,cuda_copy,self")


def add_deployment_arguments(parser: argparse.ArgumentParser, run_dir: Path) -> None:
    """Adds the options that ``up`` and ``demo`` share; what is not given is left to ``KVPATH_*`` variables."""
    parser.add_argument("--run-dir", type=Path, default=run_dir, help=f"where logs and results go ({run_dir})")
    parser.add_argument("--cache", type=Path, help="where models are kept (KVPATH_CACHE, else ~/.cache/kvpath)")
    parser.add_argument("--cpu-threads", type=int, help="threads of each engine (half of the cores, at most 8)")
    for name, what in _PORTS.items():
        default = DeploymentSettings.model_fields[name].default or _KEPT_PORT_DEFAULT
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="PORT", help=f"{what} ({default})")


def settings_from(args: argparse.Namespace) -> DeploymentSettings:
    """Raises ``ValidationError`` or ``SettingsError`` for a value that cannot be, ``ModelError`` without a home."""
    given = {name: value for name, value in vars(args).items() if name in DeploymentSettings.model_fields}
    return DeploymentSettings(**{name: value for name, value in given.items() if value is not None})


class Progress:
    """Prints lines with the seconds since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, line: str) -> None:
        print(f"[{time.monotonic() - self._started:4.0f} s] {line}", flush=True)


def run(args: argparse.Namespace) -> int:
    say = Progress()
    interrupt_on_termination()
    try:
        with running_stack(settings_from(args), say) as stack:
            print(invitation(stack.settings, stack.prefill, stack.decode))
            while True:
                stack.deployment.check()
                time.sleep(1.0)
    except KeyboardInterrupt:
        say("stopped; nothing is left running")
        return 0
    except (DeploymentError, ModelError) as error:
        print(f"kvpath up: {error}", file=sys.stderr)
        return EXIT_FAILED
    except (ValidationError, SettingsError) as error:
        print(f"kvpath up: {one_line(error)}", file=sys.stderr)
        return EXIT_USAGE


def invitation(settings: DeploymentSettings, prefill: EngineSpec, decode: EngineSpec) -> str:
    """What a deployment that is ready can be asked for; every command works as it is printed."""
    router = RouterSettings.model_validate(router_config(settings, prefill, decode))
    *modes, last = configured_modes(router)  # those that /ready names
    reuse = f"; {names.MODE_REUSE} wants -H '{names.HEADER_CONVERSATION}: ID'" if names.MODE_REUSE in modes else ""
    further = {
        f"{own_command()} report --url {settings.store_url}": "stages of TTFT, mode beside mode",
        f"{settings.store_url}/view/": "the same as a page, request by request",
        f"{settings.run_dir / STORE_FILE}": "traces, also of earlier runs (7 days, at most 1 GiB)",
        f"{settings.run_dir / 'logs'}": "what every process says",
    }
    return f"""
Ready. One OpenAI-compatible endpoint, modes {", ".join(modes)} and {last}{reuse}:

  curl -sN {settings.router_url}/v1/completions -H 'content-type: application/json' \\
    -H '{names.HEADER_MODE}: {names.MODE_PULL if names.MODE_PULL in modes else modes[0]}' \\
    -d '{{"model": "{settings.model_name}", "prompt": "The capital of France is", "max_tokens": 8, "stream": true}}'

It streams, because an answer in one piece has no first token to time: the report leaves such answers out.

{two_columns(further)}

Ctrl-C stops everything.
"""


def two_columns(lines: Mapping[str, str]) -> str:
    """Commands and files, each with what it is for beside it."""
    width = max(map(len, lines)) + 2
    return "\n".join(f"  {left:<{width}}{right}" for left, right in lines.items())
