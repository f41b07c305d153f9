from __future__ import annotations

import errno
import importlib
import pwd
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from stack.__main__ import COMMANDS, main


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in COMMANDS)


def test_no_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().out


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dance"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_overview_imports_no_part() -> None:
    code = (
        "import sys; from stack.__main__ import main; main(['--help']); "
        "print([name for name in sys.modules if name.startswith('stack.')])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.rstrip().endswith("['stack.__main__']")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module(COMMANDS[name][0])
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"kvpath {name}" in capsys.readouterr().out


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kvpath {version('kvpath')}\n"


GOLDEN = Path(__file__).parents[1] / "golden" / "push_prefill_last.json"
# Command → command lines that name a place where nothing can be written, or nothing be read. FILE/... is below a file,
# which nobody may write to, not even root; `out`, where everything goes by default, is one. DIR is empty.
ODD_PATHS = {
    "demo": ("", "--run-dir FILE", "--run-dir FILE/run", "--run-dir DIR/run --cache FILE"),
    "up": ("", "--run-dir FILE", "--run-dir FILE/run", "--run-dir DIR/run --cache FILE", "--model-dir FILE/model"),
    "engine": ("prefill",),
    "router": ("--config FILE/router.json", "--config DIR"),
    "mode": ("--token-file FILE/token", "--token-file DIR"),
    "store": ("--port 0", "--port 0 --path FILE/traces.db", "--port 0 --path DIR"),
    "report": (
        *("--traces FILE/traces.json", "--traces DIR", "--traces FILE"),
        *("--traces GOLDEN --html FILE/page.html", "--traces GOLDEN --html DIR"),
    ),
    "trace": ("abc --traces FILE/traces.json", "abc --traces DIR"),
    "view": ("--traces FILE/traces.json", "--traces DIR", "--result FILE/run", "--result DIR"),
    "probe": ("--model FILE/model", "--model DIR"),
    "ab": (
        *("--resume", "--resume --out FILE", "--preset reuse", "--preset reuse --out FILE/run"),
        *("--prompts DIR", "--prompts FILE/prompts", "--probe DIR", "--probe FILE/probe.json"),
    ),
    "export": ("--port 0", "--port 0 --state FILE/state.db", "--port 0 --state DIR"),
    "grafana": ("check --token-file DIR", "check --token-file FILE/token", "push --dashboards FILE/boards"),
    "bench": ("", "--out FILE/bench.json", "--out DIR"),
}


@pytest.fixture
def handlers():
    """Commands that start engines handle signals in their own way until their process ends."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_odd_paths_are_tried_with_every_command() -> None:
    assert set(ODD_PATHS) == set(COMMANDS)


@pytest.mark.parametrize("file", ["out", "x" * 300], ids=["a file", "a name too long"])
@pytest.mark.parametrize("line", [f"{name} {rest}" for name, lines in ODD_PATHS.items() for rest in lines])
@pytest.mark.usefixtures("handlers")
def test_a_path_that_cannot_be_used_is_one_line(
    line: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("a file")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVPATH_CACHE", "out/cache")
    monkeypatch.setenv("KVPATH_GRAFANA_URL", "http://127.0.0.1:1")
    assert main(line.replace("FILE", file).replace("DIR", "empty").replace("GOLDEN", str(GOLDEN)).split()) in (1, 2)
    printed = capsys.readouterr().err
    assert printed.startswith(f"kvpath {line.split()[0]}: ")
    assert printed.count("\n") == 1


@pytest.mark.parametrize("line", ["up", "demo", "engine decode", "ab --preset reuse"])
@pytest.mark.usefixtures("handlers")
def test_a_user_without_a_home_is_told_what_to_set(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "KVPATH_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 1
    assert capsys.readouterr().err.endswith("no home directory to keep models in: set HOME, or KVPATH_CACHE\n")


@pytest.mark.parametrize("line", ["up", "demo", "ab --preset reuse"])
@pytest.mark.parametrize(("name", "value"), [("KVPATH_ENGINE_ARGS", "--seed 1"), ("KVPATH_STORE_PORT", "many")])
@pytest.mark.usefixtures("handlers")
def test_a_variable_that_makes_no_sense_is_one_line(
    line: str,
    name: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    printed = capsys.readouterr().err
    assert name.removeprefix("KVPATH_").lower() in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "out/up"), "out/up: Permission denied"),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory"), "No usable temporary directory"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_what_a_command_does_not_expect_of_files_is_one_line(
    raised: BaseException, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: object) -> int:
        raise raised

    part = ModuleType("part")
    part.add_arguments, part.run = lambda parser: None, run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "part", part)
    monkeypatch.setitem(COMMANDS, "part", ("part", "a part"))
    assert main(["part"]) == 1
    assert capsys.readouterr().err == f"kvpath part: {said}\n"
