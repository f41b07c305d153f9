"""The guard with real process trees: nothing of a tree survives, whoever ends first and however."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stack.engines import guard

# A root, a child, and a grandchild in a session of its own that ignores SIGTERM, as stubborn as they come.
TREE = """
import os, signal, subprocess, sys, time
depth, pids = int(sys.argv[1]), sys.argv[2]
if depth:
    subprocess.Popen([sys.executable, "-c", open(sys.argv[3]).read(), str(depth - 1), pids, sys.argv[3]],
                     start_new_session=depth == 1)
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(pids, "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


class Tree:
    """A tree of three processes under a guard, and their pids."""

    def __init__(self, directory: Path, wait_for) -> None:
        self._wait_for = wait_for
        self._pids = directory / "pids"
        script = directory / "tree.py"
        script.write_text(TREE)
        self.argv = [sys.executable, str(script), "2", str(self._pids), str(script)]

    def pids(self) -> list[int]:
        self._wait_for(lambda: self._pids.exists() and len(self._pids.read_text().split()) == 3)
        return [int(pid) for pid in self._pids.read_text().split()]


@pytest.fixture
def tree(tmp_path: Path, wait_for, is_alive):
    tree = Tree(tmp_path, wait_for)
    yield tree
    for pid in tree.pids():
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def start_guard(argv: list[str], grace_s: float = 0.3, launcher: int | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-I", guard.__file__, str(launcher or os.getpid()), str(grace_s), *argv])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_whole_tree(tree: Tree, number: signal.Signals, is_alive) -> None:
    running = start_guard(tree.argv)
    pids = tree.pids()
    running.send_signal(number)
    assert running.wait(60) == 128 + signal.SIGTERM
    assert not any(is_alive(pid) for pid in pids)


def test_orphans_do_not_survive_the_death_of_their_root(tree: Tree, is_alive) -> None:
    running = start_guard(tree.argv)
    pids = tree.pids()
    root = guard.descendants_of(running.pid)[0]
    os.kill(root, signal.SIGKILL)
    assert running.wait(60) == 128 + signal.SIGKILL
    assert not any(is_alive(pid) for pid in pids)


def test_kill_9_of_the_launcher_leaves_nothing(tree: Tree, wait_for, is_alive) -> None:
    launcher_code = (
        "import os, subprocess, sys, time;"
        "p = subprocess.Popen([sys.executable, '-I', sys.argv[1], str(os.getpid()), '0.3', *sys.argv[2:]],"
        "                     start_new_session=True);"
        "print(p.pid, flush=True); time.sleep(600)"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", launcher_code, guard.__file__, *tree.argv], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    with launcher.stdout:
        guard_pid = int(launcher.stdout.readline())
    pids = tree.pids()
    launcher.kill()
    launcher.wait(60)
    wait_for(lambda: not any(is_alive(pid) for pid in [guard_pid, *pids]))


def test_a_launcher_that_is_already_gone_is_noticed(tmp_path: Path) -> None:
    witness = tmp_path / "started"
    running = start_guard([sys.executable, "-c", f"open({str(witness)!r}, 'w')"], launcher=2**22 + 1)
    assert running.wait(60) == 128 + signal.SIGTERM
    assert not witness.exists()


def test_kill_9_of_the_guard_takes_the_command_with_it(tmp_path: Path, wait_for, is_alive) -> None:
    witness = tmp_path / "pid"
    code = f"import os, time; open({str(witness)!r}, 'w').write(str(os.getpid()) + '.'); time.sleep(600)"
    running = start_guard([sys.executable, "-c", code])
    wait_for(lambda: witness.exists() and witness.read_text().endswith("."))
    running.kill()
    running.wait(60)
    wait_for(lambda: not is_alive(int(witness.read_text()[:-1])))


@pytest.mark.parametrize("status", [0, 3])
def test_the_status_of_the_command_is_the_guards(status: int) -> None:
    assert start_guard([sys.executable, "-c", f"raise SystemExit({status})"]).wait(60) == status


def test_a_command_that_does_not_exist_has_its_own_status() -> None:
    assert start_guard(["/nonexistent/command"]).wait(60) == guard.EXIT_NOT_FOUND


def test_a_second_signal_ends_the_grace(tmp_path: Path, wait_for) -> None:
    witness = tmp_path / "ready"
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, lambda *_: open(W, 'a').write('asked ')); "
        "open(W, 'w').write('ready '); [time.sleep(1) for _ in range(600)]"
    ).replace("W", repr(str(witness)))
    running = start_guard([sys.executable, "-c", code], grace_s=600.0)
    wait_for(lambda: witness.exists() and "ready" in witness.read_text())
    running.terminate()
    wait_for(lambda: "asked" in witness.read_text())
    running.terminate()
    assert running.wait(60) == 128 + signal.SIGKILL
