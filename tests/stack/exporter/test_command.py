"""The command as a process: it refuses nonsense in one line, serves, and stops on a signal."""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from stack.exporter import command


def parse(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(flags)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--shard", "2", "--shards", "2"), "numbered from 0 to 1"),
        (("--port", "70000"), "port:"),
        (("--url", "localhost:3200"), "not an http:// or https:// URL"),
    ],
)
def test_nonsense_is_one_line_and_exit_code_2(tmp_path, capsys, flags, says):
    assert command.run(parse("--port", "0", "--state", str(tmp_path / "s.db"), *flags)) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_help_names_a_duration_as_it_is_given(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    printed = " ".join(capsys.readouterr().out.split())
    assert "--since DURATION" in printed
    assert "90s, 15m, 2h (default: 0s)" in printed
    assert parse("--since", "5m").since_s == 300


def test_a_taken_port_is_exit_code_1(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command.run(parse("--port", str(port), "--state", str(tmp_path / "s.db"))) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_a_state_that_cannot_be_is_exit_code_1(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert command.run(parse("--port", "0", "--state", str(tmp_path / "file" / "s.db"))) == 1
    assert "exporter state" in capsys.readouterr().err


def test_it_serves_and_stops_on_a_signal_although_no_store_answers(tmp_path):
    arguments = [sys.executable, "-m", "stack", "export", "--port", "0", "--state", str(tmp_path / "s.db")]
    arguments += ["--url", "http://127.0.0.1:1"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().split()[2].removesuffix("/metrics,")
            assert httpx.get(f"{url}/health").status_code == 503
            assert "kvpath_exporter_lag_seconds" in httpx.get(f"{url}/metrics").text
            process.send_signal(signal.SIGTERM)
            assert process.wait(5) == 0
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
