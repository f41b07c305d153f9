"""One pair of real engines for all tests here: real vLLM on CPU, real NIXL, the real small model, router and store.

The engines run the switch connector with faults that tests can turn on (:mod:`disturbed`), and send their spans
through a gate that tests can close (:mod:`gate`). Everything listens on ports of its own, so that ``kvpath up`` may
run beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from connector import names
from stack.analysis.complete import defects
from stack.analysis.source import TraceSource
from stack.analysis.trace import Trace
from stack.demo.client import Answer, stream_completion
from stack.engines.command_line import EngineSpec, engine_argv, engine_env, kv_transfer_config
from stack.engines.launch import _router_part, _store_part
from stack.engines.model import prepare_smollm2
from stack.engines.processes import Deployment, Part
from stack.engines.readiness import Awaited, prove_or_restart, wait_until_healthy
from stack.engines.settings import DeploymentSettings, engine_specs
from stack.experiment.step import step_engine

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from control import VARIABLE  # noqa: E402
from gate import Gate  # noqa: E402

MODES = (names.MODE_PUSH, names.MODE_PULL)
SETTINGS = DeploymentSettings(
    run_dir=Path("out/live"),
    router_port=18000,
    prefill_port=18100,
    decode_port=18200,
    prefill_side_channel_port=15600,
    decode_side_channel_port=15610,
    kept_ttl_s=20,  # so short that a test can wait for its end
    store_port=14318,
)
GATE_PORT = 14319
ADMIN_TOKEN = "live-tests"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.live)


def say(line: str) -> None:
    print(f"[live] {line}", file=sys.__stderr__, flush=True)


@dataclass
class LiveStack:
    """The running stack and what tests do with it."""

    settings: DeploymentSettings
    deployment: Deployment
    prefill: EngineSpec
    decode: EngineSpec
    gate: Gate
    control: Path

    def ask(self, mode: str, prompt: str) -> Answer:
        """One greedy streaming completion through the router."""
        return stream_completion(self.settings.router_url, self.settings.model_name, prompt, {names.HEADER_MODE: mode})

    def trace(self, trace_id: str, timeout_s: float = 20.0) -> Trace:
        """The trace once it is complete; as it is when it does not become so in time."""
        self.step_prefill()
        found: list[Trace] = []

        def complete() -> bool:
            trace = source.fetch(trace_id)
            if trace is not None:
                found[:] = [trace]
            return trace is not None and not defects(trace, engine_spans=True)

        with TraceSource(self.settings.store_url) as source:
            eventually(complete, timeout_s, check=False)
        assert found, f"the store has no trace {trace_id}"
        return found[0]

    def step_prefill(self) -> None:
        """Makes P's engine step, which frees the last pull's blocks."""
        step_engine(self.prefill.url, self.settings.model_name)

    def metric(self, engine: EngineSpec, name: str, **labels: str) -> float:
        """The sum of a metric over all samples that carry ``labels``."""
        text = httpx.get(f"{engine.url}/metrics", trust_env=False).text
        total = 0.0
        for line in text.splitlines():
            match = re.match(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)$", line)
            if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
                total += float(match[2])
        return total

    def kv_usage(self) -> float:
        """Share of KV blocks in use, the larger of both engines'."""
        return max(self.metric(engine, "vllm:kv_cache_usage_perc") for engine in (self.prefill, self.decode))

    def in_flight(self) -> float:
        return sum(
            self.metric(engine, f"vllm:num_requests_{state}")
            for engine in (self.prefill, self.decode)
            for state in ("running", "waiting")
        )

    def fail(self, handler: str, where: str) -> None:
        self.control.write_text(json.dumps({"fail": handler, "where": where}))
        time.sleep(0.01)  # engines reread the file every millisecond

    def delay(self, seconds: Mapping[str, float]) -> None:
        """Holds requests up, by place (:mod:`control`); beside faults it replaces them."""
        self.control.write_text(json.dumps({"delay": dict(seconds)}))
        time.sleep(0.01)  # engines reread the file every millisecond

    def heal(self) -> None:
        self.control.unlink(missing_ok=True)
        time.sleep(0.01)


def eventually(holds: Callable[[], bool], timeout_s: float, check: bool = True, poll_s: float = 0.1) -> bool:
    """Waits for something in another process, which can only be polled."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            assert not check, f"not within {timeout_s} s: {holds.__qualname__}"
            return False
        time.sleep(poll_s)
    return True


def engine_processes() -> set[int]:
    """Pids of all vLLM processes of this machine: API servers by their module, the others by the title they set."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                command = (entry / "cmdline").read_bytes()
                if b"VLLM::" in command or b"vllm.entrypoints" in command:
                    found.add(int(entry.name))
    return found


def engine_part(spec: EngineSpec, control: Path) -> Part:
    """An engine with the disturbed connector in place of the switch connector."""
    config = kv_transfer_config(spec) | {
        "kv_connector": "DisturbedSwitchConnector",
        "kv_connector_module_path": "disturbed",
    }
    argv = list(engine_argv(spec))
    argv[argv.index("--kv-transfer-config") + 1] = json.dumps(config)
    env = {
        VARIABLE: str(control),
        "PYTHONPATH": os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", ""))),
    }
    return Part(
        f"{spec.role} engine", tuple(argv), SETTINGS.run_dir / "logs" / f"{spec.role}.log", engine_env(spec) | env
    )


@pytest.fixture(scope="session")
def stack() -> Iterator[LiveStack]:
    specs = engine_specs(SETTINGS, prepare_smollm2(SETTINGS.cache, say))
    prefill, decode = (replace(spec, otlp_endpoint=f"http://127.0.0.1:{GATE_PORT}") for spec in specs)
    SETTINGS.run_dir.mkdir(parents=True, exist_ok=True)
    control = (SETTINGS.run_dir / "control.json").resolve()
    control.unlink(missing_ok=True)
    gate = Gate(SETTINGS.store_url, GATE_PORT)
    with Deployment() as deployment:
        (store,) = deployment.start(_store_part(SETTINGS))
        wait_until_healthy(deployment, [Awaited(store, f"{SETTINGS.store_url}/ready")], 60.0, say)
        router = _router_part(SETTINGS, prefill, decode)
        router = replace(router, env={**router.env, "KVPATH_ROUTER_ADMIN_TOKEN": ADMIN_TOKEN})
        *engines, running = deployment.start(*(engine_part(spec, control) for spec in (prefill, decode)), router)
        awaited = [Awaited(part, f"{spec.url}/health") for part, spec in zip(engines, (prefill, decode), strict=True)]
        awaited.append(Awaited(running, f"{SETTINGS.router_url}/ready"))
        wait_until_healthy(deployment, awaited, SETTINGS.start_timeout_s, say)
        prove_or_restart(
            deployment,
            awaited[:2],
            awaited[2],
            SETTINGS.router_url,
            SETTINGS.model_name,
            MODES,
            SETTINGS.start_timeout_s,
            say,
        )
        yield LiveStack(SETTINGS, deployment, prefill, decode, gate, control)
        say("stopping")
    gate.close()
