"""start both engines, the router and the trace store, and keep them until Ctrl-C

The same deployment as the demo's, without its requests.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from connector import names
from stack.engines.launch import RunningStack, running_stack
from stack.engines.model import ModelError
from stack.engines.processes import DeploymentError, interrupt_on_termination
from stack.engines.settings import ConnectorChoice, DeploymentSettings
from stack.settings_error import one_line

EXIT_FAILED, EXIT_USAGE = 1, 2
_PORTS = {
    "router_port": "the router",
    "prefill_port": "the prefill engine",
    "decode_port": "the decode engine",
    "prefill_side_channel_port": "the prefill engine's NIXL side channel (and the next one)",
    "decode_side_channel_port": "the decode engine's NIXL side channel (and the next one)",
    "store_port": "the trace store",
}


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
        default = DeploymentSettings.model_fields[name].default
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="PORT", help=f"{what} ({default})")


def settings_from(args: argparse.Namespace) -> DeploymentSettings:
    """Raises ``ValidationError`` for a value that cannot be."""
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
            _invite(stack)
            while True:
                stack.deployment.check()
                time.sleep(1.0)
    except KeyboardInterrupt:
        say("stopped; nothing is left running")
        return 0
    except (DeploymentError, ModelError) as error:
        print(f"kvpath up: {error}", file=sys.stderr)
        return EXIT_FAILED
    except ValidationError as error:
        print(f"kvpath up: {one_line(error)}", file=sys.stderr)
        return EXIT_USAGE


def _invite(stack: RunningStack) -> None:
    settings = stack.settings
    modes = " and ".join(stack.modes)
    if stack.decode.keeps:
        modes += f", and {names.MODE_REUSE} for turns with -H '{names.HEADER_CONVERSATION}: ID'"
    print(f"""
Ready. One OpenAI-compatible endpoint, modes {modes}:

  curl -s {settings.router_url}/v1/completions -H 'content-type: application/json' \\
    -H 'x-kvpath-mode: {stack.modes[-1]}' \\
    -d '{{"model": "{settings.model_name}", "prompt": "The capital of France is", "max_tokens": 8}}'

  kvpath report --url {settings.store_url}      stages of TTFT, mode beside mode
  {settings.run_dir}/logs                       what every process says

Ctrl-C stops everything.
""")
