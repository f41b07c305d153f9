"""The two sides of the probe, and the steps between them.

The prefill side connects, brings the plan and leads: for each repetition and case it tells the decode side what comes,
WRITEs itself or has the decode side READ, and has what arrived checked. Repetitions go round the cases, so that a
disturbance of the machine meets all of them alike. Runs on one thread in a process of its own.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.metadata
import os
import platform
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from connector.transfers import contiguous_runs
from stack.probe.agent import Agent, Timing, nixl_version
from stack.probe.control import MARGIN_S, Channel
from stack.probe.errors import ProbeError
from stack.probe.layout import block_ids, descriptor_ids
from stack.probe.memory import KvMemory, allocate, arrived, fill
from stack.probe.plan import DECODE, PREFILL, READ, WRITE, Case, Plan
from stack.probe.protocol_table import chosen_rows, parse_tables

Report = Callable[..., None]  # tells the process that waits about progress


def about(device: str) -> dict[str, Any]:
    """Returns what the peer and the result should know about this side."""
    return {
        "host": socket.gethostname(),
        "boot_id": _boot_id(),
        "cpus": os.cpu_count(),
        "device": device,
        "kvpath": _version(),
        "nixl": nixl_version(),
        "python": platform.python_version(),
        "ucx": {name: value for name, value in sorted(os.environ.items()) if name.startswith("UCX_")},
    }


class Side:
    """One side with its blocks and its agent, in touch with the other side's."""

    def __init__(self, role: str, plan: Plan, device: str, channel: Channel, log: Path) -> None:
        self.plan, self._channel, self._log = plan, channel, log
        self.role, self._other = role, DECODE if role == PREFILL else PREFILL
        self.memory: KvMemory = allocate(device, plan)
        if role == PREFILL:
            fill(self.memory, plan)
        self.agent = Agent(plan, self.memory)

    def meet(self) -> dict[str, Any]:
        """Exchanges agents' metadata and addresses; returns what the handshake took on this side."""
        memory = self.memory
        metadata = base64.b64encode(self.agent.metadata).decode()
        self._channel.send("agent", metadata=metadata, bases=memory.bases, memory=memory.kind, device=memory.device)
        peer = self._channel.expect("agent")
        return self.agent.meet(base64.b64decode(peer["metadata"]), peer["bases"], peer["memory"], peer["device"])

    def move(self, case: Case, run: int) -> Timing:
        mine, theirs = (block_ids(self.plan, case, role) for role in (self.role, self._other))
        return self.agent.move(case.operation, mine, theirs, self.messages(case, run))

    def messages(self, case: Case, run: int) -> list[bytes]:
        return [f"{case.operation} {case.layout} {case.transfers} {run} {n}".encode() for n in range(case.transfers)]

    def check(self, case: Case) -> None:
        """Raises unless exactly the blocks of this case arrived here."""
        wrong = arrived(self.memory, self.plan, *(block_ids(self.plan, case, role) for role in (PREFILL, DECODE)))
        if wrong is not None:
            raise ProbeError(f"{case.operation}, {case.layout}: {wrong}; nothing measured here can be trusted")

    def protocol_rows(self, operation: str) -> list[dict[str, Any]]:
        """Returns what UCX printed in this process about an operation."""
        ctypes.CDLL(None).fflush(None)  # UCX prints through C's buffers
        tables = parse_tables(self._log.read_text(encoding="utf-8", errors="replace"))
        return [row.to_json() for row in chosen_rows(tables, operation, self.memory.kind)]


def lead(channel: Channel, plan: Plan, device: str, log: Path, report: Report) -> dict[str, Any]:
    """The prefill side; returns everything that was measured, as JSON types."""
    decode = channel.greet(about(device))
    channel.send("plan", plan=plan.to_json())
    side = Side(PREFILL, plan, device, channel, log)
    setup = {PREFILL: side.meet(), DECODE: channel.expect("ready")["setup"]}
    timings: dict[Case, list[Timing]] = {case: [] for case in plan.cases}
    for run in range(1 + plan.repetitions):
        for case in plan.cases:
            timings[case].append(_one(channel, side, case, run))
            report("step")
    channel.send("end")
    rows = {WRITE: side.protocol_rows(WRITE), READ: channel.expect("tables")["rows"]}
    side.agent.close()
    return {
        "cases": [_measured(plan, case, found) for case, found in timings.items()],
        "rows": rows,
        "setup": setup,
        PREFILL: about(device) | {"memory": side.memory.name},
        DECODE: decode,
    }


def _one(channel: Channel, side: Side, case: Case, run: int) -> Timing:
    channel.send("step", operation=case.operation, layout=case.layout, transfers=case.transfers, run=run)
    channel.expect("cleared")
    if case.operation == READ:
        channel.send("go")
        timing = Timing(**channel.expect("measured"))
        side.agent.await_messages(side.messages(case, run))
        return timing
    timing = side.move(case, run)
    channel.send("moved")
    channel.expect("checked")
    return timing


def _measured(plan: Plan, case: Case, timings: list[Timing]) -> dict[str, Any]:
    runs = count = 0
    for source, target in zip(block_ids(plan, case, PREFILL), block_ids(plan, case, DECODE), strict=True):
        ids = [descriptor_ids(ids, plan.pool, plan.shape.layers) for ids in (source, target)]
        runs, count = runs + contiguous_runs(*ids), count + len(ids[0])
    return {**asdict(case), "descriptors": count, "contiguous_runs": runs, "timings": [asdict(t) for t in timings]}


def follow(channel: Channel, device: str, log: Path, report: Report) -> None:
    """The decode side: does what the prefill side asks until that says it is the end."""
    channel.greet(about(device))
    try:
        plan = Plan.from_json(channel.expect("plan")["plan"])
    except (ValueError, KeyError) as error:
        raise ProbeError(f"the peer's plan cannot be carried out: {error}") from None
    channel.timeout_s = max(channel.timeout_s, plan.timeout_s + MARGIN_S)
    side = Side(DECODE, plan, device, channel, log)
    channel.send("ready", setup=side.meet())
    while True:
        kind, content = channel.receive()
        if kind == "end":
            channel.send("tables", rows=side.protocol_rows(READ))
            side.agent.close()
            return
        _step(channel, side, _case_of(plan, content), int(content["run"]))
        report("step")


def _step(channel: Channel, side: Side, case: Case, run: int) -> None:
    side.memory.clear()
    channel.send("cleared")  # also before a READ: whoever moves has waited, and so stands equal with the scheduler
    if case.operation == READ:
        channel.expect("go")
        timing = side.move(case, run)
        side.check(case)
        channel.send("measured", **asdict(timing))
        return
    channel.expect("moved")
    side.agent.await_messages(side.messages(case, run))
    side.check(case)
    channel.send("checked")


def _case_of(plan: Plan, content: dict[str, Any]) -> Case:
    for case in plan.cases:
        if asdict(case).items() <= content.items():
            return case
    raise ProbeError(f"the peer asks for {content!r}, which is not in its plan")


def _version() -> str | None:
    try:
        return importlib.metadata.version("kvpath")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return None


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
