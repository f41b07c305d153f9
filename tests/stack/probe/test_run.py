"""Real NIXL agents in real processes, with blocks of a few kilobytes."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stack.engines.guard import descendants_of
from stack.probe import BlockShape, ProbeError, run_probe
from stack.probe import run as run_module
from stack.probe.plan import Plan
from stack.probe.run import serve_probe

SHAPE = BlockShape(layers=3, kv_heads=1, head_size=32, dtype="float32", block_size=16)
TOKENS = 128  # 8 blocks of 4 KiB a layer


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Any:
    """Ends what a failed test left, so that neither the machine nor the next test has to bear it."""
    before = descendants_of(os.getpid())
    yield
    left = [pid for pid in descendants_of(os.getpid()) if pid not in before]
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in left:
        with suppress(ChildProcessError):  # a grandchild: whoever started it, or init, takes its status
            os.waitpid(pid, 0)
    assert left == []


def test_the_decode_side_may_have_a_device_of_its_own() -> None:
    with pytest.raises(ProbeError, match=r"no device cuda:9 here|cuda:9 needs PyTorch"):
        run_probe(SHAPE, TOKENS, 1, decode_device="cuda:9")


def test_two_processes_measure_both_directions() -> None:
    seen: list[tuple[int, int]] = []
    found = run_probe(SHAPE, TOKENS, 2, concurrency=2, progress=lambda done, of: seen.append((done, of)))
    assert [(r["operation"], r["layout"], r["concurrency"]) for r in found["results"]] == [
        (operation, layout, count)
        for count in (1, 2)
        for layout in ("contiguous", "fragmented")
        for operation in ("WRITE", "READ")
    ]
    for result in found["results"]:
        count = result["concurrency"]
        assert result["bytes"] == count * 3 * 8 * 4096
        assert result["descriptors"] == count * 24
        assert result["contiguous_runs"] == count * (3 if result["layout"] == "contiguous" else 24)
        assert result["submitted_descriptors"] == result["contiguous_runs"]  # NIXL merges exactly the runs
        assert 0 < result["submit_ns"] <= result["total_ns"]
        assert result["prepare_ns"] > 0
        assert result["gigabytes_per_second"] == pytest.approx(result["bytes"] / result["total_ns"])
    assert {type(transport["emulated"]) for transport in found["transport"].values()} == {bool}
    assert found["environment"]["same_host"] is True
    assert seen[-1] == (24, 24)
    json.dumps(found)


def test_an_emulated_direction_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,self")  # UCX has no READ over TCP
    found = run_probe(SHAPE, TOKENS, 1, layouts=("fragmented",))
    assert found["transport"]["WRITE"]["name"].startswith("zero-copy over ")
    assert found["transport"]["WRITE"]["emulated"] is False
    assert found["transport"]["READ"]["name"].startswith("software emulation over tcp/")
    assert found["transport"]["READ"]["emulated"] is True
    assert found["notes"][0].startswith("READ is emulated in software")


def test_a_backend_that_cannot_be_used_is_one_line() -> None:
    with pytest.raises(ProbeError, match=r"backend 'NONE' here; there are .*UCX"):
        run_probe(SHAPE, TOKENS, 1, backend="NONE")


def test_without_nixl_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for package in ("nixl", "nixl_cu12", "nixl_cu13"):
        (tmp_path / f"{package}.py").write_text("raise ImportError('no such package')")
    root = Path(run_module.__file__).parents[2]
    monkeypatch.setattr(
        run_module, "_environment", lambda: {"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}", "UCX_PROTO_INFO": "y"}
    )
    with pytest.raises(ProbeError, match="NIXL is not installed"):
        run_probe(SHAPE, TOKENS, 1)


def test_too_little_memory_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "Session", None)
    with pytest.raises(ProbeError, match="fewer --tokens"):
        run_probe(BlockShape(layers=10_000, kv_heads=64, head_size=256), 1_000_000)


def test_two_hosts_are_two_commands() -> None:
    ready, opened = threading.Event(), []

    def listening(host: str, port: int) -> None:
        opened.append((host, port))
        ready.set()

    failed: list[BaseException] = []

    def serve() -> None:
        try:
            serve_probe(("127.0.0.1", 0), wait_s=60.0, listening=listening)
        except BaseException as error:
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=serve)
    thread.start()
    ready.wait()
    try:
        found = run_probe(SHAPE, TOKENS, 1, connect=opened[0], layouts=("contiguous",))
    finally:
        thread.join()
    assert not failed
    assert len(found["results"]) == 2


def test_nobody_who_connects_is_an_error() -> None:
    with pytest.raises(ProbeError, match="no peer connected within"):
        serve_probe(("127.0.0.1", 0), wait_s=0.1)


def test_a_peer_of_another_version_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            data = json.dumps({"kind": "hello", "protocol": "kvpath.probe.control/0", "kvpath": "0.0.1"}).encode()
            with connection:
                connection.sendall(struct.pack(">I", len(data)) + data)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ProbeError, match="install the same kvpath on both hosts"):
            run_probe(SHAPE, TOKENS, 1, connect=server.getsockname()[:2])
        thread.join()


def test_a_side_that_is_killed_ends_the_probe_with_its_reason() -> None:
    def kill(done: int, of: int) -> None:
        if done == 1:
            victim = next(pid for pid in descendants_of(os.getpid()) if _is_listening_side(pid))
            os.kill(victim, signal.SIGKILL)

    with pytest.raises(ProbeError, match=r"^the decode side of the probe ended with status 137"):
        run_probe(SHAPE, TOKENS, 500, progress=kill)


def test_whoever_sees_its_peer_vanish_leaves_the_reason_to_the_peer() -> None:
    """The race of the test above, once each way: NIXL may notice before the control channel does."""

    class Leader:
        def event(self, timeout_s: float) -> dict[str, Any]:
            raise ProbeError("WRITE failed: NIXL_ERR_REMOTE_DISCONNECT")

    class Peer:
        reason: str | None = "the decode side of the probe ended with status 137"

        def own_failure(self, timeout_s: float) -> str | None:
            return self.reason

    plan, peer = Plan(shape=SHAPE, tokens=TOKENS, repetitions=1), Peer()
    with pytest.raises(ProbeError, match="ended with status 137"):
        run_module._wait(Leader(), peer, plan, None)
    peer.reason = None
    with pytest.raises(ProbeError, match="NIXL_ERR_REMOTE_DISCONNECT"):
        run_module._wait(Leader(), peer, plan, None)


def _is_listening_side(pid: int) -> bool:
    argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"stack.probe.side_process" in argv and b"guard.py" not in b" ".join(argv) and b'"listen": true' in argv[-2]


def test_ctrl_c_leaves_nothing_running() -> None:
    argv = [sys.executable, "-m", "stack", "probe", "--layers", "3", "--kv-heads", "1", "--head-size", "32"]
    root = Path(run_module.__file__).parents[2]
    with subprocess.Popen([*argv, "--repetitions", "1000000"], cwd=root, stderr=subprocess.PIPE, text=True) as command:
        try:
            while len(descendants_of(command.pid)) < 4:  # two guards, two sides
                assert command.poll() is None
            started = descendants_of(command.pid)
            command.send_signal(signal.SIGINT)
            assert command.stderr is not None
            assert command.stderr.read() == "kvpath probe: interrupted; nothing is left running\n"
            assert command.wait(30) == 1
        finally:
            command.kill()
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
