"""``kvpath store`` as a process."""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stack.store import command
from stack.store.testing import SpanSpec, StoreClient

_RUN = """
import argparse, sys
from stack.store import command
parser = argparse.ArgumentParser()
command.add_arguments(parser)
sys.exit(command.run(parser.parse_args(sys.argv[1:])))
"""


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_serves_and_stops_cleanly_within_five_seconds(tmp_path: Path, stop: signal.Signals) -> None:
    path = tmp_path / "deep" / "t.db"
    arguments = [sys.executable, "-c", _RUN, "--port", "0", "--path", str(path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[2]
        with StoreClient(base_url=url) as client:
            assert client.export(SpanSpec(1)).status_code == 200
            begun = time.monotonic()
            process.send_signal(stop)
            _, errors = process.communicate(timeout=10)
        assert time.monotonic() - begun < 5
        assert process.returncode == 0
        assert errors == ""
    assert path.exists()
    assert not path.with_name("t.db-wal").exists()


def test_a_wrong_setting_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(parsed("--max-bytes", "5")) == 2
    assert "max_bytes" in capsys.readouterr().err


def test_a_taken_port_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command.run(parsed("--port", str(port), "--path", str(tmp_path / "t.db"))) == 1
    assert "pick another --port" in capsys.readouterr().err


def test_a_damaged_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.db"
    path.write_bytes(b"nonsense" * 1000)
    assert command.run(parsed("--port", "0", "--path", str(path))) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
