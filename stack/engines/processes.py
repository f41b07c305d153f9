"""The parts of a deployment as processes: started under guards, watched, stopped, with their logs in files.

Used from the launcher's main thread only: the kernel tells a guard about the end of the *thread* that started it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal

from stack.engines import guard

GRACE_S = 4.0  # engines flush their spans and release what they hold; with the store down they must not wait longer
LOG_TAIL_LINES = 15


class DeploymentError(Exception):
    """A part could not be started, or ended by itself. The message is for the user: what, where, what to try."""


@dataclass(frozen=True, slots=True)
class Part:
    """One process to run: ``env`` is added to the launcher's own; output goes to ``log``."""

    name: str
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)


class RunningPart:
    """A part that was started, seen through its guard."""

    def __init__(self, part: Part, grace_s: float = GRACE_S) -> None:
        self.part = part
        self._grace_s = grace_s
        part.log.parent.mkdir(parents=True, exist_ok=True)
        self._guard = self._start("wb")

    def _start(self, log_mode: Literal["wb", "ab"]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", guard.__file__, str(os.getpid()), str(self._grace_s), *self.part.argv]
        with self.part.log.open(log_mode) as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.part.env},
                # A group, so that a terminal's Ctrl-C reaches the launcher alone; no session: Linux shares CPUs out
                # session by session (autogroup), and with one for each engine some kernels (seen: 6.18) leave a
                # runnable engine waiting for seconds to minutes behind the other one's NIXL thread, which spins
                # while it awaits a connection. Within a session every thread gets its turn.
                process_group=0,
            )

    def start_again(self) -> None:
        """Starts the part anew, once it has ended; its log goes on below what the first run said."""
        self._guard = self._start("ab")

    @property
    def pid(self) -> int:
        """The guard's pid; the part's processes are below it."""
        return self._guard.pid

    @property
    def status(self) -> int | None:
        """The exit status (``128 + signal`` for a signal), ``None`` while it runs."""
        return self._guard.poll()

    def check(self) -> None:
        """Raises :class:`DeploymentError` with the last log lines when the part has ended."""
        status = self.status
        if status is None:
            return
        tail = "\n".join(f"  | {line}" for line in last_lines(self.part.log, LOG_TAIL_LINES))
        raise DeploymentError(f"{self.part.name} ended with status {status}; the end of {self.part.log}:\n{tail}")

    def ask_to_stop(self) -> None:
        if self._guard.poll() is None:
            self._guard.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Waits for the whole tree to be gone; returns whether it is."""
        try:
            self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def finish(self, still: Callable[[float], None], every_s: float = 10.0) -> None:
        """Waits until the part has done its work, and tells ``still`` now and then for how many seconds it has run.

        When it is interrupted in that, the part is stopped.
        """
        started = time.monotonic()
        try:
            while not self.wait(every_s):
                still(time.monotonic() - started)
        finally:
            self.ask_to_stop()
            self.wait(5.0)


class Deployment:
    """All running parts. As a context manager it stops them, last started first, however the block ends."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._stages: list[list[RunningPart]] = []

    def start(self, *parts: Part) -> list[RunningPart]:
        """Starts parts that are stopped together later; parts of earlier calls outlive them.

        The store, started first, thereby takes the last spans of all others.
        """
        running: list[RunningPart] = []
        self._stages.append(running)
        for part in parts:
            running.append(RunningPart(part, self._grace_s))
        return running

    @property
    def parts(self) -> list[RunningPart]:
        return [part for stage in self._stages for part in stage]

    def check(self) -> None:
        """Raises :class:`DeploymentError` for the first part that has ended."""
        for part in self.parts:
            part.check()

    def stop(self) -> None:
        """Stops everything and returns when no process is left. A second Ctrl-C meanwhile kills at once."""
        while self._stages:
            stage = self._stages[-1]
            for part in stage:
                part.ask_to_stop()
            deadline = time.monotonic() + self._grace_s + 2.0
            for part in stage:
                self._wait_or_insist(part, deadline)
            self._stages.pop()

    def restart(self, parts: Sequence[RunningPart]) -> None:
        """Stops ``parts`` and starts each again in its old place; no other part is touched."""
        for part in parts:
            part.ask_to_stop()
        deadline = time.monotonic() + self._grace_s + 2.0
        for part in parts:
            if not part.wait(max(0.0, deadline - time.monotonic())):
                part.ask_to_stop()
                part.wait(10.0)
        for part in parts:
            part.start_again()

    def _wait_or_insist(self, part: RunningPart, deadline: float) -> None:
        try:
            gone = part.wait(max(0.0, deadline - time.monotonic()))
        except KeyboardInterrupt:
            gone = False
        if not gone:
            for each in self.parts:
                each.ask_to_stop()  # the second request to a guard: it kills its tree now
            part.wait(10.0)

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def interrupt_on_termination() -> None:
    """Makes SIGTERM and SIGHUP end the launcher as Ctrl-C does, so that its deployment is stopped."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):  # SIGINT too: a shell ignores it for `command &`
        signal.signal(number, interrupt)


def last_lines(path: Path, count: int) -> list[str]:
    """Returns the last ``count`` non-empty lines of a text file, ``[]`` when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16_384))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]
