"""The steps of both sides over a real channel. NIXL is replaced by a copier, so that it can be made to lie."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stack.probe import side
from stack.probe.agent import Timing
from stack.probe.control import accept, connect, listen
from stack.probe.errors import PeerError, ProbeError
from stack.probe.memory import KvMemory
from stack.probe.plan import Plan
from stack.probe.protocol_table import ProtocolRow

TABLES = Path(__file__).parent / "tables"


class Copier:
    """Copies blocks between the memories of one process as an agent should."""

    made: list[Copier]

    def __init__(self, plan: Plan, memory: KvMemory) -> None:
        self.plan, self.memory, self.metadata = plan, memory, b"agent"
        self.closed = False
        self.made.append(self)

    def meet(self, metadata: bytes, bases: Sequence[int], kind: str, device: int) -> dict[str, int]:
        (self.peer,) = (other for other in self.made if other.memory.bases == bases)
        return {"add_peer_ns": 1, "prepare_tables_ns": 1}

    def move(self, operation: str, local: Sequence[Any], remote: Sequence[Any], messages: Sequence[bytes]) -> Timing:
        source, target = (self, self.peer) if operation == "WRITE" else (self.peer, self)
        pairs = zip(local, remote, strict=True) if operation == "WRITE" else zip(remote, local, strict=True)
        for source_ids, target_ids in pairs:
            self.copy(source.memory, source_ids, target.memory, target_ids)
        return Timing(10, 20, 30, len(local))

    def copy(self, source: KvMemory, source_ids: Any, target: KvMemory, target_ids: Any) -> None:
        for region in range(self.plan.shape.layers):
            words = target.load(region).reshape(self.plan.pool, -1)
            words[target_ids] = source.load(region).reshape(self.plan.pool, -1)[source_ids]

    def await_messages(self, messages: Sequence[bytes]) -> None:
        assert all(messages)

    def close(self) -> None:
        self.closed = True


class Idle(Copier):
    def copy(self, source: KvMemory, source_ids: Any, target: KvMemory, target_ids: Any) -> None:
        pass


class Astray(Copier):
    def copy(self, source: KvMemory, source_ids: Any, target: KvMemory, target_ids: Any) -> None:
        super().copy(source, source_ids, target, target_ids[::-1])


def probe(monkeypatch: pytest.MonkeyPatch, agent: type[Copier], plan: Plan) -> tuple[Any, Exception | None, list[str]]:
    """Runs both sides; returns what the leading one measured or raised, what the other raised, and the steps."""
    agent.made = Copier.made = []
    monkeypatch.setattr(side, "Agent", agent)
    server = listen("127.0.0.1", 0)
    near = connect("127.0.0.1", server.getsockname()[1], 5.0)
    far = accept(server, 5.0, 5.0)
    steps: list[str] = []
    failed: list[Exception] = []

    def follow() -> None:
        try:
            side.follow(far, "cpu", TABLES / "tcp_read_emulated.txt", steps.append)
        except ProbeError as error:
            failed.append(error)
            with contextlib.suppress(ProbeError):
                far.send("error", message=str(error))

    with contextlib.closing(near), contextlib.closing(far):
        thread = threading.Thread(target=follow)
        thread.start()
        try:
            result: Any = side.lead(near, plan, "cpu", TABLES / "cma.txt", steps.append)
        except ProbeError as error:
            result = error
            near.close()
        thread.join()
    return result, failed[0] if failed else None, steps


def test_every_case_is_measured_every_time(monkeypatch: pytest.MonkeyPatch, make_plan: Any) -> None:
    plan = make_plan(concurrency=2)
    measured, failed, steps = probe(monkeypatch, Copier, plan)
    assert failed is None
    assert len(measured["cases"]) == 8
    assert all(len(case["timings"]) == 1 + plan.repetitions for case in measured["cases"])
    assert steps.count("step") == 2 * 3 * 8  # on both sides
    assert all(agent.closed for agent in Copier.made)


def test_descriptors_and_runs_are_of_all_transfers(monkeypatch: pytest.MonkeyPatch, make_plan: Any) -> None:
    measured, _, _ = probe(monkeypatch, Copier, make_plan(concurrency=2))
    counted = {(c["layout"], c["transfers"]): (c["descriptors"], c["contiguous_runs"]) for c in measured["cases"]}
    assert counted == {
        ("contiguous", 1): (24, 3),
        ("fragmented", 1): (24, 24),
        ("contiguous", 2): (48, 6),
        ("fragmented", 2): (48, 48),
    }


def test_each_operation_s_table_comes_from_the_side_that_moves(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    measured, _, _ = probe(monkeypatch, Copier, plan)
    rows = {operation: ProtocolRow(**found[0]).name for operation, found in measured["rows"].items()}
    assert rows == {"WRITE": "zero-copy over cma/memory", "READ": "software emulation over tcp/lo"}


@pytest.mark.parametrize(("agent", "what"), [(Idle, "nothing arrived"), (Astray, "other data arrived")])
def test_a_probe_that_moved_nothing_or_astray_fails_on_both_sides(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, agent: type[Copier], what: str
) -> None:
    error, failed, _ = probe(monkeypatch, agent, plan)
    assert isinstance(error, PeerError)
    assert what in str(error)
    assert what in str(failed)
