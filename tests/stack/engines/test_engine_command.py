from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stack.engines.command_line import engine_argv
from stack.engines.engine_command import add_arguments, environment, run
from stack.engines.engine_settings import PREFIX, EngineSettings, engine_spec


def arguments(role: str = "prefill") -> argparse.Namespace:
    return argparse.Namespace(role=role, dry_run=True)


def test_a_dry_run_prints_the_one_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVPATH_ENGINE_MODEL", "/models/m")
    assert run(arguments("decode")) == 0
    printed = shlex.split(capsys.readouterr().out.removeprefix("kvpath engine: "))
    assert tuple(printed) == engine_argv(engine_spec(EngineSettings(), "decode", "/models/m"))
    assert json.loads(printed[printed.index("--kv-transfer-config") + 1])["kv_role"] == "kv_consumer"


def test_what_the_environment_sets_wins() -> None:
    spec = engine_spec(EngineSettings(), "prefill", "m")
    env = environment(spec, {"HF_HUB_OFFLINE": "0", "PATH": "/bin"})
    assert env["HF_HUB_OFFLINE"] == "0"
    assert env["PATH"] == "/bin"
    assert env["OTEL_SERVICE_NAME"] == "vllm-prefill"


@pytest.mark.parametrize("value", ["0", "many"])
def test_a_wrong_setting_is_wrong_usage_in_one_line(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVPATH_ENGINE_PORT", value)
    assert run(arguments()) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("kvpath engine: KVPATH_ENGINE_*: port: ")
    assert printed.count("\n") == 1


def test_a_list_that_is_no_json_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVPATH_ENGINE_NIXL_BACKENDS", "LIBFABRIC")
    assert run(arguments()) == 2
    assert "nixl_backends" in capsys.readouterr().err


def test_an_unknown_host_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KVPATH_ENGINE_SIDE_CHANNEL_HOST", "no.such.host.invalid")
    assert run(arguments()) == 1
    assert "no.such.host.invalid" in capsys.readouterr().err


def test_an_engine_for_a_gpu_needs_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("KVPATH_ENGINE_DEVICE", "cuda")
    monkeypatch.setenv("KVPATH_CACHE", str(tmp_path / "cache"))
    assert run(argparse.Namespace(role="prefill", dry_run=False)) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("kvpath engine: device cuda needs a GPU")
    assert printed.count("\n") == 1
    assert not (tmp_path / "cache").exists()


def test_help_names_every_variable_and_what_holds_without_it() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    lines = {line.split()[0]: line for line in parser.format_help().splitlines() if line.startswith(f"  {PREFIX}")}
    assert set(lines) == {f"{PREFIX}{name.upper()}" for name in EngineSettings.model_fields}
    assert lines["KVPATH_ENGINE_PORT"].endswith("(8000)")
    assert lines["KVPATH_ENGINE_BLOCK_SIZE"].endswith("tokens; none: 32 on the CPU, 16 on a GPU (none)")


def test_the_process_becomes_the_engine(tmp_path: Path) -> None:
    """A stand-in for vLLM's server, found first on the path of modules, tells its pid and what it was given."""
    server = tmp_path / "vllm" / "entrypoints" / "openai" / "api_server.py"
    server.parent.mkdir(parents=True)
    for package in list(server.parents)[:3]:
        (package / "__init__.py").touch()
    server.write_text(
        "import json, os, sys\nprint(json.dumps([os.getpid(), sys.argv[1:], os.environ['OMP_NUM_THREADS']]))"
    )
    repository = Path(__file__).parents[3]
    env = os.environ | {
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{repository}",
        "KVPATH_ENGINE_MODEL": "/models/m",
        "KVPATH_ENGINE_CPU_THREADS": "3",
    }
    env.pop("OMP_NUM_THREADS", None)
    started = subprocess.Popen(
        [sys.executable, "-m", "stack", "engine", "prefill"], env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    printed, _ = started.communicate(timeout=60)
    pid, argv, threads = json.loads(printed.splitlines()[-1])
    assert started.returncode == 0
    assert pid == started.pid
    assert argv[argv.index("--model") + 1] == "/models/m"
    assert threads == "3"
