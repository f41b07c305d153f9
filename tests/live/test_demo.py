"""`kvpath demo` as a user runs it: ends in time, leaves its results and nothing else, and says what is true."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest
from conftest import engine_processes

from stack.analysis import otlp_json

RUN_DIR = Path("out/live-demo")
PORTS = {"router": 28000, "prefill": 28100, "decode": 28200, "store": 24318}
LIMIT_S = 480.0


@pytest.fixture(scope="module")
def demo() -> tuple[subprocess.CompletedProcess[str], float, set[int]]:
    """The finished command, how long it took in seconds, and the engine processes it left."""
    before = engine_processes()
    command = [sys.executable, "-m", "stack", "demo", "--run-dir", str(RUN_DIR)]
    for name, port in PORTS.items():
        command += [f"--{name}-port", str(port)]
    command += ["--prefill-side-channel-port", "25600", "--decode-side-channel-port", "25610"]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S)
    return done, time.monotonic() - started, engine_processes() - before


@pytest.fixture(scope="module")
def result(demo) -> dict:
    done, _, _ = demo
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return json.loads((RUN_DIR / "result.json").read_text())


def test_it_ends_in_time_and_says_what_it_does(demo, result) -> None:
    done, seconds, _ = demo
    assert seconds < LIMIT_S
    assert "push" in done.stdout
    assert "pull" in done.stdout
    assert "unexplained" in done.stdout


def test_every_request_is_complete_and_adds_up(result) -> None:
    requests = result["requests"]
    assert len(requests) == 24
    for request in requests:
        assert request["defects"] == []
        assert sum(request["stages_ns"].values()) + request["unexplained_ns"] == request["trace_ttft_ns"]


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_unexplained_and_the_clients_own_measure(result, mode: str) -> None:
    requests = [request for request in result["requests"] if request["mode"] == mode]
    assert len(requests) == 12
    assert median(abs(r["unexplained_ns"]) / r["trace_ttft_ns"] for r in requests) <= 0.05
    assert median(abs(r["client_ttft_ns"] - r["trace_ttft_ns"]) for r in requests) <= 5_000_000


def test_texts_agree_as_often_as_two_plain_runs_do(result) -> None:
    texts = result["texts"]
    assert texts["prompts"] == 12
    assert texts["plain_twice_differ"] == 0
    assert texts["differ_from_plain"] == {"push": 0, "pull": 0}
    assert texts["modes_differ"] == 0


def test_the_traces_are_otlp_json(result) -> None:
    traces = otlp_json.read_file(RUN_DIR / "traces.json")
    assert len(list(traces)) == 24


def test_nothing_is_left_running(demo) -> None:
    _, _, left = demo
    assert left == set()
