"""Parts with real processes: started, watched, stopped in order, and reported with their last words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stack.engines.processes import Deployment, DeploymentError, Part, RunningPart, last_lines

READY = "print('ready', flush=True)"
SLEEP = f"import time; {READY}; time.sleep(600)"


def part(tmp_path: Path, name: str, code: str, **env: str) -> Part:
    return Part(name, (sys.executable, "-c", code), tmp_path / "logs" / f"{name}.log", env)


def is_ready(running: RunningPart) -> bool:
    return "ready" in last_lines(running.part.log, 10)


def test_output_and_environment_of_a_part(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['COLOUR']); print('oops', file=sys.stderr)"
    running = RunningPart(part(tmp_path, "one", code, COLOUR="green"))
    assert running.wait(60)
    assert sorted(last_lines(running.part.log, 10)) == ["green", "oops"]


def test_parts_share_the_launchers_session_but_not_its_terminals_interrupt(tmp_path: Path) -> None:
    running = RunningPart(part(tmp_path, "one", "import os; print(os.getsid(0), os.getpgid(0))"))
    assert running.wait(60)
    session, group = last_lines(running.part.log, 1)[0].split()
    assert int(session) == os.getsid(0)
    assert int(group) not in (os.getpgid(0), os.getpid())


def test_the_death_of_a_part_is_reported_with_its_last_words(tmp_path: Path) -> None:
    code = "import sys; [print(f'line {i}') for i in range(100)]; print('no memory'); sys.exit(3)"
    with Deployment() as deployment:
        healthy, dying = deployment.start(part(tmp_path, "healthy", SLEEP), part(tmp_path, "dying", code))
        assert dying.wait(60)
        with pytest.raises(DeploymentError, match="dying ended with status 3") as caught:
            deployment.check()
        assert "no memory" in str(caught.value)
        assert "line 5\n" not in str(caught.value)
        healthy.check()
    assert healthy.status is not None


def test_a_part_is_waited_for_and_said_to_be_at_work(tmp_path: Path) -> None:
    goes = tmp_path / "goes"
    code = f"import pathlib, time\nwhile not pathlib.Path({str(goes)!r}).exists(): time.sleep(0.01)"
    running, said = RunningPart(part(tmp_path, "one", code)), []

    def still(seconds: float) -> None:
        said.append(seconds)
        if len(said) == 2:
            goes.touch()

    running.finish(still, every_s=0.02)
    assert running.status == 0
    assert 0 < said[0] < said[1]


def test_a_part_whose_wait_is_interrupted_is_stopped(tmp_path: Path) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    running = RunningPart(part(tmp_path, "one", SLEEP), grace_s=0.0)
    with pytest.raises(KeyboardInterrupt):
        running.finish(interrupt, every_s=0.02)
    assert running.status is not None


def test_everything_is_stopped_when_the_block_raises(tmp_path: Path, wait_for) -> None:
    running: list[RunningPart] = []

    def fail() -> None:
        with Deployment() as deployment:
            running.extend(deployment.start(part(tmp_path, "a", SLEEP), part(tmp_path, "b", SLEEP)))
            wait_for(lambda: all(is_ready(each) for each in running))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [each.status for each in running] == [128 + signal.SIGTERM] * 2


def test_later_parts_are_gone_before_earlier_ones_are_asked(tmp_path: Path, wait_for) -> None:
    journal = tmp_path / "journal"
    code = (
        "import signal, sys, time, os\n"
        "def end(*_):\n"
        "    with open(os.environ['JOURNAL'], 'a') as file: file.write(os.environ['NAME'] + '\\n')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n" + READY + "\ntime.sleep(600)"
    )
    with Deployment() as deployment:
        for name in ("store", "engine", "router"):
            (running,) = deployment.start(part(tmp_path, name, code, JOURNAL=str(journal), NAME=name))
            wait_for(lambda running=running: is_ready(running))
    assert journal.read_text().split() == ["router", "engine", "store"]


def test_a_part_that_ignores_the_request_is_killed_after_the_grace(tmp_path: Path, wait_for) -> None:
    code = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}; time.sleep(600)"
    with Deployment(grace_s=0.2) as deployment:
        (running,) = deployment.start(part(tmp_path, "stubborn", code))
        wait_for(lambda: is_ready(running))
    assert running.status == 128 + signal.SIGKILL


def test_a_restart_replaces_only_the_parts_that_are_named(tmp_path: Path, wait_for) -> None:
    code = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}; time.sleep(600)"
    with Deployment(grace_s=0.2) as deployment:
        stuck, other = deployment.start(part(tmp_path, "stuck", code), part(tmp_path, "other", SLEEP))
        wait_for(lambda: is_ready(stuck) and is_ready(other))
        before = (stuck.pid, other.pid)
        deployment.restart([stuck])
        wait_for(lambda: last_lines(stuck.part.log, 10) == ["ready", "ready"])  # what the first run said is kept
        deployment.check()
        assert stuck.pid != before[0]
        assert other.pid == before[1]
        assert deployment.parts == [stuck, other]
    assert stuck.status == 128 + signal.SIGKILL


LAUNCHER = """
import sys, time
from pathlib import Path
from stack.engines.processes import Deployment, Part, interrupt_on_termination
interrupt_on_termination()
directory, code = Path(sys.argv[1]), sys.argv[2]
try:
    with Deployment() as deployment:
        parts = deployment.start(*(Part(n, (sys.executable, "-c", code), directory / f"{n}.log") for n in "ab"))
        print(*(part.pid for part in parts), flush=True)
        while True:
            deployment.check()
            time.sleep(0.02)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_however_a_launcher_is_ended_nothing_stays(tmp_path: Path, number: signal.Signals, wait_for, is_alive) -> None:
    code = (
        "import subprocess, sys, time;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print(child.pid, 'ready', flush=True); time.sleep(600)"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path), code], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    with launcher.stdout:
        guards = [int(pid) for pid in launcher.stdout.readline().split()]
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    wait_for(lambda: all("ready" in log.read_text() for log in logs))
    children = [int(log.read_text().split()[0]) for log in logs]
    launcher.send_signal(number)
    assert launcher.wait(60) == (-number if number == signal.SIGKILL else 130)
    wait_for(lambda: not any(is_alive(pid) for pid in guards + children))


def test_the_death_of_one_part_ends_the_launcher_and_the_other(tmp_path: Path, is_alive) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path), SLEEP],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    guards = [int(pid) for pid in launcher.stdout.readline().split()]
    os.kill(guards[0], signal.SIGTERM)
    _, complaint = launcher.communicate(timeout=60)
    assert "a ended with status" in complaint
    assert not is_alive(guards[1])


def test_last_lines_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "none", 3) == []
