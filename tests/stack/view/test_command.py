"""``kvpath view``: which address it prints, and one clear line for what is wrong."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from stack import experiment
from stack.analysis.otlp_json import write_file
from stack.analysis.synthetic import push_trace
from stack.store.settings import StoreSettings
from stack.store.testing import opened
from stack.view import command

RESULTS = Path(experiment.__file__).parent / "results"


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def test_the_address_of_a_store_that_serves_the_page(tmp_path, capsys):
    with opened(StoreSettings(path=tmp_path / "t.db")) as client:
        url = str(client.base_url)
        assert run("--url", url) == 0
    assert capsys.readouterr().out == f"kvpath view: {url}/view/\n"


def test_a_file_is_served_until_interrupted(tmp_path):
    write_file(tmp_path / "traces.json", [push_trace()])
    arguments = [sys.executable, "-m", "stack", "view", "--traces", str(tmp_path / "traces.json")]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as served:
        assert served.stdout is not None
        line = served.stdout.readline()
        address = line.split()[2]
        assert httpx.get(f"{address}api/requests").json()["requests"][0]["request_id"] == "req-1"
        served.send_signal(signal.SIGINT)
        _, errors = served.communicate(timeout=20)
    assert (served.returncode, errors) == (0, "")


def test_a_port_is_served_also_where_the_store_serves_the_page(tmp_path):
    with opened(StoreSettings(path=tmp_path / "t.db")) as client:
        arguments = [sys.executable, "-m", "stack", "view", "--url", str(client.base_url), "--port", "0"]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=os.environ) as served:
            assert served.stdout is not None
            address = served.stdout.readline().split()[2]
            assert not address.startswith(str(client.base_url))
            assert httpx.get(f"{address}api/requests").status_code == 200
            served.send_signal(signal.SIGINT)
            served.wait(20)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--traces", "nowhere.json"], 1, "cannot read nowhere.json"),
        (["--url", "ftp://x"], 1, "is not an http:// or https:// URL"),
        (["--result", "nowhere.json"], 2, "there is no such file"),
        (["--result", str(RESULTS / "h200-tracing.json")], 2, "there is no verdict in it"),
        (["--result", __file__], 2, "test_command.py cannot be read"),
        (["--url", "http://127.0.0.1:1"], 1, "cannot reach"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, code, words, capsys):
    assert run(*arguments) == code
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert words in errors


def test_a_port_that_is_taken_is_said(tmp_path, capsys):
    write_file(tmp_path / "traces.json", [push_trace()])
    with opened(StoreSettings(path=tmp_path / "t.db")) as client:
        assert run("--traces", str(tmp_path / "traces.json"), "--port", str(client.base_url.port)) == 1
    assert "pick another --port" in capsys.readouterr().err
