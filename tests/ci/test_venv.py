"""What `make venv` says before it downloads anything; filling .venv itself is what every other test runs on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
NO_MAKING = '#!/bin/sh\n[ "$1" != -m ] || { echo "asked: $*"; exit 3; }\nexec {python} "$@"\n'


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    clone = tmp_path / "clone"
    (clone / ".ci").mkdir(parents=True)
    for name in ("requirements.lock", "pyproject.toml", ".ci/venv", ".ci/uv"):
        shutil.copy(REPOSITORY / name, clone / name)
    return clone


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter that tells what modules it was asked to run instead of running them."""
    program = tmp_path / "python"
    program.write_text(NO_MAKING.replace("{python}", sys.executable))
    program.chmod(0o755)
    return program


def fill(clone: Path, python: object) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHON": str(python)}
    return subprocess.run([clone / ".ci" / "venv"], env=env, capture_output=True, text=True, timeout=60)


def fill_as_if(clone: Path, where: Path, interpreter: Path = Path(sys.executable)) -> None:
    """Leaves what a run of the script leaves that was made in ``where``."""
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "python").symlink_to(interpreter)
    files = [(clone / name).read_bytes() for name in ("requirements.lock", "pyproject.toml", ".ci/venv", ".ci/uv")]
    digest = subprocess.run(["sha256sum"], input=b"".join(files), capture_output=True, check=True).stdout.decode()[:16]
    (clone / ".venv" / f".ready-{digest}").write_text(f"{where}\n")


@pytest.mark.parametrize("wrong", ["/nonexistent", "python3 -I"])
def test_a_program_that_is_none_is_one_line(clone: Path, wrong: str) -> None:
    ended = fill(clone, wrong)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"there is no program '{wrong}': set PYTHON=/path/to/python3.11, the interpreter alone and without options\n"
    )


@pytest.mark.parametrize("wrong", ["true", "false"])
def test_a_program_that_is_no_python_is_one_line(clone: Path, wrong: str) -> None:
    ended = fill(clone, wrong)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"kvpath needs Python 3.11, 3.12 or 3.13, and {wrong} is no Python:")
    assert ended.stderr.count("\n") == 1


def test_a_python_that_is_too_old_is_named(clone: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\necho 3.9\n")
    old.chmod(0o755)
    ended = fill(clone, old)
    assert ended.returncode == 1
    assert f"{old} is 3.9" in ended.stderr


def test_what_is_filled_is_left_alone(clone: Path, python: Path) -> None:
    fill_as_if(clone, clone)
    ended = fill(clone, python)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize("changed", ["requirements.lock", ".ci/uv"])
def test_other_requirements_fill_it_again(clone: Path, python: Path, changed: str) -> None:
    fill_as_if(clone, clone)
    with (clone / changed).open("a") as file:
        file.write("# more\n")
    ended = fill(clone, python)
    assert ended.returncode == 3
    assert ended.stdout.splitlines()[-1] == "asked: -m venv .venv"


def test_a_clone_that_was_moved_is_filled_anew(clone: Path, python: Path) -> None:
    fill_as_if(clone, Path("/home/before/kvpath"), interpreter=Path("/home/before/python3"))
    ended = fill(clone, python)
    assert ended.returncode == 3
    assert "this directory was /home/before/kvpath before" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "asked: -m venv --clear .venv"


def test_an_interpreter_that_is_gone_is_one_line_with_what_to_do(clone: Path, python: Path) -> None:
    fill_as_if(clone, clone, interpreter=Path("/nonexistent/python3.11"))
    ended = fill(clone, python)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1
    assert "`make clean`" in ended.stderr
