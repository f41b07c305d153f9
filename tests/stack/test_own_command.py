from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stack.own_command import own_command

BIN = Path(sys.executable).parent


def test_the_short_name_only_where_it_leads_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "kvpath"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert own_command(str(BIN)) == "kvpath"
    assert own_command(str(tmp_path)) == own_command("") == str(BIN / "kvpath")
    monkeypatch.chdir(BIN.parent)
    assert own_command("") == f"{BIN.name}/kvpath"


def test_it_runs_as_printed() -> None:
    printed = own_command("")
    ran = subprocess.run(f"{printed} report --help", shell=True, capture_output=True, text=True, check=True)
    assert "usage" in ran.stdout


def test_an_installation_without_the_script_runs_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert own_command("") == f"{tmp_path}/python -m stack"
