"""The running profile and what tests do with it."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from docker_daemon import REPOSITORY

from connector import names
from stack.analysis.complete import defects
from stack.analysis.source import TraceSource
from stack.analysis.trace import Trace
from stack.demo.client import Answer, stream_completion

MODEL = "SmolLM2-135M-Instruct"
ENGINE_PORT, TEMPO_PORT = 8000, 3200


@dataclass(frozen=True)
class Containers:
    """Containers of one Compose project, in the profile ``cpu``."""

    environment: Mapping[str, str]

    def compose(self, *arguments: str, check: bool = True) -> str:
        command = ["docker", "compose", "--profile", "cpu", *arguments]
        done = subprocess.run(
            command, cwd=REPOSITORY, env=self.environment, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def inside(self, service: str, *command: str) -> str:
        return self.compose("exec", "-T", service, *command)

    def facts(self, service: str) -> Any:
        """What the daemon knows of a service's container."""
        (container,) = self.compose("ps", "-q", service).split()
        done = subprocess.run(["docker", "inspect", container], env=self.environment, capture_output=True, check=True)
        return json.loads(done.stdout)[0]

    def address(self, service: str) -> str:
        (network,) = self.facts(service)["NetworkSettings"]["Networks"].values()
        return str(network["IPAddress"])

    def received_bytes(self, service: str) -> int:
        """Everything that came in over the container's network interface so far."""
        devices = Path(f"/proc/{self.facts(service)['State']['Pid']}/net/dev").read_text()
        return int(re.findall(r"eth0:\s*(\d+)", devices)[0])

    def ask(self, mode: str, prompt: str, conversation: str | None = None) -> Answer:
        """One greedy streaming completion through the published port of the router."""
        url = f"http://{self.compose('port', 'router', '8000').strip()}"
        headers = {names.HEADER_MODE: mode} | ({names.HEADER_CONVERSATION: conversation} if conversation else {})
        return stream_completion(url, MODEL, prompt, headers)

    def trace(self, trace_id: str, timeout_s: float = 60.0) -> Trace:
        """The trace once it is complete; as it is when it does not become so in time."""
        prefill = f"http://{self.address('prefill-cpu')}:{ENGINE_PORT}"
        stream_completion(prefill, MODEL, "One more step.")  # an idle P frees a pull's blocks with its next step only
        deadline = time.monotonic() + timeout_s
        with TraceSource(f"http://{self.address('tempo')}:{TEMPO_PORT}") as source:
            while True:
                trace = source.fetch(trace_id)
                if trace is not None and (not defects(trace, engine_spans=True) or time.monotonic() > deadline):
                    return trace
                assert time.monotonic() < deadline, f"Tempo's stand-in has no trace {trace_id}"
                time.sleep(0.5)

    def eventually(self, read: Callable[[], Any], holds: Callable[[Any], bool], timeout_s: float = 60.0) -> Any:
        """Reads until ``holds`` or the time is over; returns what was read last."""
        deadline = time.monotonic() + timeout_s
        while not holds(found := read()) and time.monotonic() < deadline:
            time.sleep(1.0)
        return found

    def metrics(self, service: str, port: int) -> str:
        return httpx.get(f"http://{self.address(service)}:{port}/metrics", trust_env=False, timeout=10).text
