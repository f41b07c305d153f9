"""Runs one command and leaves none of its processes behind, whatever happens to whoever started it.

Every part of a deployment runs under its own guard: ``python -I guard.py LAUNCHER_PID GRACE_S COMMAND...``. An
engine is a tree of processes (API server, EngineCore, workers) that can outlive its root. The guard

* is told by the kernel when the launcher dies, even by ``kill -9`` (``PR_SET_PDEATHSIG``);
* is the subreaper of the tree, so that orphans, also those in sessions of their own, become its children;
* on a signal and on the launcher's death asks the command to end (SIGTERM) and waits at most ``GRACE_S`` seconds;
* when the command has ended, for whatever reason, gives the rest of its tree 3 seconds and kills what is left then.

It exits with the command's own status (``128 + signal`` when a signal ended it). Standard library only: it starts in
20 ms. Single-threaded; signals are waited for, never handled asynchronously.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
WATCHED = STOP_SIGNALS | {signal.SIGCHLD}
EXIT_NOT_FOUND = 127
ORPHAN_GRACE_S = 3.0  # resource trackers unlink shared memory after everybody else has ended


def main(argv: list[str]) -> int:
    launcher, grace_s, command = int(argv[0]), float(argv[1]), argv[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != launcher:  # it died before the kernel was asked to tell
        return 128 + signal.SIGTERM
    root = _spawn(command)
    status = _wait_for_end(root)
    if status is None:
        status = _ask_to_end(root, grace_s)
    if status is not None:
        _let_the_rest_end(min(grace_s, ORPHAN_GRACE_S))
    _kill_tree()
    return 128 + signal.SIGKILL if status is None else _exit_code(status)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _spawn(command: list[str]) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # should the guard itself be killed
        if os.getppid() != guard:
            os._exit(128 + signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    os._exit(EXIT_NOT_FOUND)


def _wait_for_end(root: int) -> int | None:
    """Waits for the command's end and returns its wait status; ``None`` when asked to stop before."""
    while True:
        caught = signal.sigwait(WATCHED)
        if caught in STOP_SIGNALS:
            return None
        status = _reap().get(root)
        if status is not None:
            return status


def _ask_to_end(root: int, grace_s: float) -> int | None:
    """Sends SIGTERM to the command and waits at most ``grace_s`` seconds for its wait status.

    A second signal ends the wait: whoever asks twice does not want to wait.
    """
    os.kill(root, signal.SIGTERM)  # not reaped yet, so the number is still its own
    deadline = time.monotonic() + grace_s
    while (left := deadline - time.monotonic()) > 0:
        status = _reap().get(root)
        if status is not None:
            return status
        caught = signal.sigtimedwait(WATCHED, left)
        if caught is not None and caught.si_signo in STOP_SIGNALS:
            return None
    return None


def _reap() -> dict[int, int]:
    """Collects every child that has ended, the tree's orphans among them; pid → wait status."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def _let_the_rest_end(timeout_s: float) -> None:
    """Waits at most ``timeout_s`` seconds for what the command left behind to end by itself."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        _reap()
        if not descendants_of(os.getpid()):
            return
        caught = signal.sigtimedwait(WATCHED, 0.1)
        if caught is not None and caught.si_signo in STOP_SIGNALS:
            return


def _kill_tree() -> None:
    """Kills descendants until there are none: killing a parent hands its children to this process."""
    while True:
        _reap()
        descendants = descendants_of(os.getpid())
        if not descendants:
            return
        for pid in descendants:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        signal.sigtimedwait({signal.SIGCHLD}, 0.2)


def descendants_of(ancestor: int) -> list[int]:
    """Returns the pids of all processes below ``ancestor``, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:  # it ended meanwhile
            continue
        parent = int(stat.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    frontier = [ancestor]
    while frontier:
        below = children.get(frontier.pop(), [])
        found += below
        frontier += below
    return found


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
