"""Runs a probe: starts one side or both in processes of their own, waits for what they measured, leaves nothing behind.

Every side runs under the guard of :mod:`stack.engines`. A side that says nothing for too long, or ends without a
result, ends the probe with one line. Call from the thread that stays until the end: the guard watches it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import tempfile
import time
from collections.abc import Callable
from io import RawIOBase
from pathlib import Path
from typing import Any

import stack
from connector.fewcores import PROGRESS_DELAY_US
from stack.engines.processes import Deployment, Part, RunningPart, last_lines
from stack.probe.capacity import available_bytes, require
from stack.probe.control import MARGIN_S
from stack.probe.errors import LostPeerError, PeerError, ProbeError
from stack.probe.plan import DECODE, DEFAULT_TIMEOUT_S, PREFILL, Plan
from stack.probe.result import document
from stack.probe.shape import BlockShape

LOOPBACK = "127.0.0.1"
GRACE_S = 3.0
PEER_END_S = 5.0  # a side that failed is given this long to say so
START_S = 60.0  # loading NIXL on a busy machine
DEFAULT_WAIT_S = 600.0

_ERRORS = {error.__name__: error for error in (ProbeError, PeerError, LostPeerError)}

Address = tuple[str, int]
Progress = Callable[[int, int], None]  # measurements done, of


def run_probe(
    shape: BlockShape,
    tokens: int,
    repetitions: int = 5,
    *,
    connect: Address | None = None,
    device: str = "cpu",
    decode_device: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Measures READ and WRITE of ``tokens`` tokens' KV cache and returns a ``kvpath.probe/1`` document.

    Between two processes of this host, or with a peer that runs :func:`serve_probe` (``connect``). ``device`` is
    ``cpu`` or ``cuda:N``, ``decode_device`` that of the decode side where it is another, ``options`` are the fields of
    :class:`Plan`; NIXL's progress delay is that of kvpath's engines on the device if none is given. Raises
    :class:`ProbeError`, and ``ValueError`` for a plan that cannot be.
    """
    options.setdefault("progress_delay_us", PROGRESS_DELAY_US if device == "cpu" else None)
    plan = Plan(shape=shape, tokens=tokens, repetitions=repetitions, **options)
    if device == "cpu":
        require((1 if connect else 2) * plan.memory_bytes, available_bytes(), "host memory")
    with Session(device, plan.timeout_s) as session:
        peer = None
        if connect is None:
            peer = session.start(listen=(LOOPBACK, 0), wait_s=START_S, device=decode_device)
            connect = (LOOPBACK, peer.event(START_S)["port"])
        leader = session.start(connect=connect, plan=plan)
        return document(plan, _wait(leader, peer, plan, progress))


def serve_probe(
    address: Address,
    *,
    device: str = "cpu",
    wait_s: float = DEFAULT_WAIT_S,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    listening: Callable[[str, int], None] | None = None,
) -> None:
    """Is the decode side of one probe that a peer leads. Raises :class:`ProbeError`.

    ``listening`` is told the address once a peer can connect; port 0 takes any free one.
    """
    with Session(device, timeout_s) as session:
        side = session.start(listen=address, wait_s=wait_s)
        opened = side.event(START_S)
        if listening is not None:
            listening(opened["host"], opened["port"])
        side.event(wait_s + START_S)
        while side.event(max(timeout_s, START_S) + 2 * MARGIN_S)["event"] != "done":
            pass


def _wait(leader: SideProcess, peer: SideProcess | None, plan: Plan, progress: Progress | None) -> dict[str, Any]:
    """Returns what the leading side measured."""
    silence_s = max(plan.timeout_s, START_S) + 2 * MARGIN_S
    steps = 0
    try:
        while True:
            event = leader.event(silence_s)
            if event["event"] == "result":
                return event["measured"]
            if event["event"] == "step":
                steps += 1
                if progress is not None:
                    progress(steps, (1 + plan.repetitions) * len(plan.cases))
    except PeerError:
        raise
    except ProbeError as error:
        # Who lost its peer, maybe in the middle of a transfer, says what it saw; why, the peer's own end says.
        reason = peer.own_failure(PEER_END_S) if peer is not None else None
        raise ProbeError(reason or str(error)) from None


class Session:
    """The processes of one probe on this host; none of them, and no file, is left when the block ends."""

    def __init__(self, device: str, timeout_s: float) -> None:
        self._common = {"device": device, "timeout_s": timeout_s}
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Session:
        self._folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="kvpath-probe-")))
        self._deployment = self._closing.enter_context(Deployment(GRACE_S))
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    def start(
        self,
        *,
        listen: Address | None = None,
        connect: Address | None = None,
        plan: Plan | None = None,
        wait_s: float = 0.0,
        device: str | None = None,
    ) -> SideProcess:
        """Starts the decode side (``listen``) or the prefill side (``connect``, with its plan)."""
        role = DECODE if listen else PREFILL
        events, log = self._folder / f"{role}.events", self._folder / f"{role}.log"
        os.mkfifo(events)
        # Read and write: so the FIFO neither blocks before the side opens it nor ends when the side does.
        stream = self._closing.enter_context(os.fdopen(os.open(events, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0))
        settings = self._common | ({} if device is None else {"device": device})
        settings |= {
            "listen": listen is not None,
            "address": listen or connect,
            "plan": plan.to_json() if plan else None,
            "wait_s": wait_s,
            "events": str(events),
            "log": str(log),
        }
        argv = (sys.executable, "-m", "stack.probe.side_process", json.dumps(settings))
        (part,) = self._deployment.start(Part(f"the {role} side", argv, log, _environment()))
        return SideProcess(part, stream)


class SideProcess:
    """The process of one side, seen through its events."""

    def __init__(self, part: RunningPart, events: RawIOBase) -> None:
        self._part, self._events = part, events
        self._buffer = b""

    def event(self, timeout_s: float) -> dict[str, Any]:
        """Returns the next event; raises :class:`ProbeError` for an error, an end without one, and for silence."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            if time.monotonic() > deadline:
                raise LostPeerError(f"{self._part.part.name} of the probe was silent for {timeout_s:g} s")
            if self._read(0.2):
                continue
            if self._part.status is not None and not self._read(0.0):
                raise ProbeError(_crash(self._part))
        line, _, self._buffer = self._buffer.partition(b"\n")
        event = json.loads(line)
        if event["event"] == "error":
            raise _ERRORS[event["cause"]](event["message"])
        return event

    def own_failure(self, timeout_s: float) -> str | None:
        """Returns why this side ended of itself, ``None`` if it did not: for when the other side has lost it."""
        try:
            while True:
                self.event(timeout_s)
        except (PeerError, LostPeerError):
            return None
        except ProbeError as error:
            return str(error)

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._events], [], [], timeout_s)[0]:
            return False
        self._buffer += self._events.read(2**16) or b""
        return True


def _environment() -> dict[str, str]:
    """Returns what a side's environment needs beyond the command's own."""
    paths = [str(Path(stack.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "UCX_PROTO_INFO": "y",
        "UCX_LOG_FILE": "stdout",
        "UCX_RCACHE_MAX_UNRELEASED": os.environ.get("UCX_RCACHE_MAX_UNRELEASED", "1024"),  # vLLM sets it as well
    }


def _crash(part: RunningPart) -> str:
    lines = last_lines(part.part.log, 1)
    return f"{part.part.name} of the probe ended with status {part.status}" + (f": {lines[0]}" if lines else "")
