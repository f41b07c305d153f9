from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from stack.engines.processes import Deployment, DeploymentError, Part
from stack.engines.readiness import (
    Awaited,
    NoAnswerError,
    check_ports_are_free,
    prove_generation,
    prove_or_restart,
    wait_until_healthy,
)

SLEEP = "import time; print('loading weights', flush=True); time.sleep(600)"
# A server that prints its port, answers GET with 200, and POST with what its argument says.
SERVER = """
import http.server, json, sys
status, body = int(sys.argv[1]), sys.argv[2].encode()
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self): self.answer(200, b"")
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        print("mode", self.headers["x-kvpath-mode"], self.headers["x-kvpath-uncounted"], flush=True)
        self.answer(status, body)
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print("port", server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def deployment():
    with Deployment(grace_s=0.5) as deployment:
        yield deployment


@pytest.fixture
def start_server(deployment: Deployment, tmp_path: Path, wait_for):
    """Starts the server as a part and returns the part and its URL."""

    def start(status: int = 200, body: object = None):
        argv = (sys.executable, "-c", SERVER, str(status), json.dumps(body))
        (running,) = deployment.start(Part("server", argv, tmp_path / "server.log"))
        wait_for(lambda: "port" in running.part.log.read_text())
        return running, f"http://127.0.0.1:{running.part.log.read_text().split()[1]}"

    return start


def test_a_taken_port_is_named_with_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DeploymentError) as caught:
            check_ports_are_free({"router": (port,)})
    assert f"{port} (router)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_free_port_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    check_ports_are_free({"router": (port,)})


def test_waiting_ends_when_all_answer(deployment: Deployment, start_server) -> None:
    running, url = start_server()
    said: list[str] = []
    wait_until_healthy(deployment, [Awaited(running, url)], 60.0, said.append)
    assert said[-1].startswith("server is up")


def test_waiting_ends_with_the_death_of_any_part(deployment: Deployment, start_server, tmp_path: Path) -> None:
    running, _ = start_server()
    dying = Part("engine", (sys.executable, "-c", "raise SystemExit('out of memory')"), tmp_path / "engine.log")
    deployment.start(dying)
    with pytest.raises(DeploymentError, match=r"engine ended with status 1.*\n.*out of memory"):
        wait_until_healthy(deployment, [Awaited(running, "http://127.0.0.1:1/")], 60.0, lambda line: None)


def test_waiting_gives_up_and_names_what_is_missing(deployment: Deployment, tmp_path: Path) -> None:
    (running,) = deployment.start(Part("engine", (sys.executable, "-c", SLEEP), tmp_path / "engine.log"))
    with pytest.raises(DeploymentError, match=r"not ready after 0 s: engine .*engine\.log"):
        wait_until_healthy(deployment, [Awaited(running, "http://127.0.0.1:1/")], 0.0, lambda line: None)


def test_progress_says_what_is_awaited_and_for_how_long_and_what_is_new_in_its_log(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_for
) -> None:
    log = tmp_path / "engine.log"
    (running,) = deployment.start(Part("engine", (sys.executable, "-c", SLEEP), log))
    wait_for(lambda: "weights" in log.read_text())
    monkeypatch.setattr("stack.engines.readiness.PROGRESS_EVERY_S", 0.0)
    monkeypatch.setattr("stack.engines.readiness.POLL_S", 0.01)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 3:
            log.write_text("(EngineCore pid=9) INFO 11-29 12:42:52 [core.py:185] compiling\n")

    with pytest.raises(DeploymentError):
        wait_until_healthy(deployment, [Awaited(running, "http://127.0.0.1:1/")], 0.5, say)
    waiting = f"waiting for engine ({log}): 0 s"
    assert said[:5] == [
        f"{waiting}; new in engine.log: loading weights",
        waiting,
        waiting,
        f"{waiting}; new in engine.log: compiling",
        waiting,
    ]


def test_progress_names_every_part_and_tells_of_each_what_is_new(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_for
) -> None:
    monkeypatch.setattr("stack.engines.readiness.PROGRESS_EVERY_S", 0.0)
    monkeypatch.setattr("stack.engines.readiness.POLL_S", 0.01)
    parts = [Part(name, (sys.executable, "-c", SLEEP), tmp_path / f"{name}.log") for name in ("one", "two")]
    running = deployment.start(*parts)
    wait_for(lambda: all("weights" in part.log.read_text() for part in parts))
    said: list[str] = []
    with pytest.raises(DeploymentError):
        wait_until_healthy(deployment, [Awaited(each, "http://127.0.0.1:1/") for each in running], 0.5, said.append)
    waiting = f"waiting for one ({parts[0].log}) and two ({parts[1].log}): 0 s"
    assert said[:3] == [
        f"{waiting}; new in one.log: loading weights",
        f"{waiting}; new in two.log: loading weights",
        waiting,
    ]


def test_generation_is_proven_in_every_mode(deployment: Deployment, start_server) -> None:
    running, url = start_server(200, {"choices": [{"text": " tokens"}]})
    prove_generation(deployment, url, "m", ("push", "pull"), lambda line: None)
    assert [line for line in running.part.log.read_text().splitlines() if "mode" in line] == [
        "mode push readiness",
        "mode pull readiness",
    ]


def test_a_token_without_text_is_a_generation(deployment: Deployment, start_server) -> None:
    _, url = start_server(200, {"choices": [{"text": ""}], "usage": {"completion_tokens": 1}})
    prove_generation(deployment, url, "m", ("push",), lambda line: None)


@pytest.mark.parametrize(
    ("status", "body"), [(502, {"error": {"message": "no engine"}}), (200, {"choices": [{"text": ""}]})]
)
def test_an_error_or_an_empty_text_is_no_generation(deployment: Deployment, start_server, status: int, body) -> None:
    _, url = start_server(status, body)
    with pytest.raises(DeploymentError, match=f"a push request through the router got HTTP {status}"):
        prove_generation(deployment, url, "m", ("push",), lambda line: None)


# Answers POST only from its second start on, as an engine whose first connection is stuck; "never": not even then.
STUCK = """
import http.server, pathlib, sys, threading
starts, port = pathlib.Path(sys.argv[1]), int(sys.argv[2])
starts.write_text((starts.read_text() if starts.exists() else "") + "start ")
is_stuck = len(starts.read_text().split()) == 1 or sys.argv[3] == "never"
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self): self.answer(b"")
    def do_POST(self):
        if is_stuck:
            threading.Event().wait()
        self.answer(b'{"choices": [{"text": " tokens"}]}')
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def start_stuck_engine(deployment: Deployment, tmp_path: Path):
    """Starts the engine that is stuck at first; returns it and the file with one word for each of its starts."""

    def start(until: str) -> tuple[Awaited, Path]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        starts = tmp_path / "starts"
        argv = (sys.executable, "-c", STUCK, str(starts), str(port), until)
        (running,) = deployment.start(Part("decode engine", argv, tmp_path / "decode.log"))
        awaited = Awaited(running, f"http://127.0.0.1:{port}")
        wait_until_healthy(deployment, [awaited], 60.0, lambda line: None)
        return awaited, starts

    return start


def test_engines_that_do_not_answer_are_started_again_once(
    deployment: Deployment, start_server, start_stuck_engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stack.engines.readiness.STALL_S", 0.3)
    router, router_url = start_server()
    engine, starts = start_stuck_engine("restarted")
    router_pid = router.pid
    said: list[str] = []
    prove_or_restart(
        deployment, [engine], Awaited(router, router_url), engine.url, "m", ("push", "pull"), 60.0, said.append
    )
    assert starts.read_text().split() == ["start"] * 2
    assert router.pid == router_pid
    assert said[0].startswith("a first push request got no answer in 0.3 s")
    assert "decode engine" in said[0]
    assert [line.split()[2] for line in said if "generated" in line] == ["push", "pull"]


def test_engines_that_are_stuck_again_are_an_error(
    deployment: Deployment, start_server, start_stuck_engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stack.engines.readiness.STALL_S", 0.3)
    monkeypatch.setattr("stack.engines.readiness.GENERATION_TIMEOUT_S", 0.4)
    router, router_url = start_server()
    engine, starts = start_stuck_engine("never")
    with pytest.raises(NoAnswerError, match="a first push request got no answer in"):
        prove_or_restart(
            deployment, [engine], Awaited(router, router_url), engine.url, "m", ("push",), 60.0, lambda line: None
        )
    assert starts.read_text().split() == ["start"] * 2


def test_engines_that_answer_are_not_started_again(deployment: Deployment, start_server) -> None:
    engine, url = start_server(200, {"choices": [{"text": " tokens"}]})
    pid = engine.pid
    prove_or_restart(
        deployment, [Awaited(engine, url)], Awaited(engine, url), url, "m", ("push",), 60.0, lambda line: None
    )
    assert engine.pid == pid
