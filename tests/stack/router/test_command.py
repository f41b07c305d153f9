"""The command as a process: it listens where it says, refuses nonsense in one line, and stops on a signal."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager

import httpx
import pytest

from connector import names
from stack.router import command
from stack.router.stub_engine import Reply

P = {"url": "http://127.0.0.1:1", "role": "prefill", "engine_id": "P", "side_channel_host": "h", "side_channel_port": 1}
D = {"url": "http://127.0.0.1:1", "role": "decode", "engine_id": "D"}


def parse(*flags):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(flags)


def test_flags_win_over_the_file_and_the_file_over_the_environment(tmp_path, monkeypatch):
    config = tmp_path / "router.json"
    config.write_text(json.dumps({"engines": [P, D], "port": 1234, "deadline_s": 7}))
    monkeypatch.setenv("KVPATH_ROUTER_DEADLINE_S", "9")
    monkeypatch.setenv("KVPATH_ROUTER_CONNECT_TIMEOUT_S", "3")
    settings = command.read_settings(parse("--config", str(config), "--port", "4321"))
    assert (settings.port, settings.deadline_s, settings.connect_timeout_s) == (4321, 7, 3)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "router.json is not a JSON file: Expecting"),
        ("# kvpath", "router.json is not a JSON file: Expecting value"),
        ("[]", "JSON object"),
        ("{}", "engines: Field required"),
        (json.dumps({"engines": [P, D], "otlp_endpoint": "grpc:1"}), "OTLP"),
        (json.dumps({"engines": [P, D], "port": "x", "admin_token": "secret"}), "port:"),
    ],
)
def test_nonsense_is_one_line_and_exit_code_2(tmp_path, capsys, content, says):
    config = tmp_path / "router.json"
    config.write_text(content)
    assert command.run(parse("--config", str(config))) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert "secret" not in error


def test_a_missing_file_is_exit_code_2(tmp_path, capsys):
    assert command.run(parse("--config", str(tmp_path / "none.json"))) == 2
    assert "none.json" in capsys.readouterr().err


def test_a_taken_port_is_exit_code_1(tmp_path, capsys):
    config = tmp_path / "router.json"
    config.write_text(json.dumps({"engines": [P, D]}))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command.run(parse("--config", str(config), "--port", str(port))) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_and_stops_cleanly_although_no_collector_answers(tmp_path, signal_number):
    config = tmp_path / "router.json"
    config.write_text(json.dumps({"engines": [P, D], "port": 0, "otlp_endpoint": "http://127.0.0.1:1"}))
    arguments = [sys.executable, "-m", "stack.router", "--config", str(config)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().split()[-1]
            assert url.startswith("http://127.0.0.1:")
            assert httpx.get(f"{url}/ready").status_code == 503
            assert httpx.post(f"{url}/v1/completions", json={}).status_code == 503
            process.send_signal(signal_number)
            assert process.wait(5) == 0
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


@asynccontextmanager
async def running(tmp_path, **settings):
    """The command as a process, with its URL."""
    config = tmp_path / "router.json"
    config.write_text(json.dumps({"port": 0, "default_mode": "plain", **settings}))
    arguments = [sys.executable, "-m", "stack.router", "--config", str(config)]
    process = await asyncio.create_subprocess_exec(
        *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process, (await process.stdout.readline()).decode().split()[-1]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("stream", [True, False])
async def test_what_it_stops_in_flight_gets_an_error_in_the_openai_shape(tmp_path, decode, events, stream):
    decode.reply = Reply(tokens=9, pause_at=3, resume=asyncio.Event()) if stream else Reply(hold=asyncio.Event())
    async with running(tmp_path, engines=[decode.settings.model_dump()]) as (process, url):
        async with httpx.AsyncClient(base_url=url, timeout=10) as client:
            body = {"prompt": "p", "stream": stream}
            asking = asyncio.create_task(client.post("/v1/completions", json=body))
            await decode.until(lambda stub: stub.in_flight == 1)
            process.send_signal(signal.SIGINT)
            response = await asking
        _, log = await asyncio.wait_for(process.communicate(), 5)
        assert process.returncode == 0
    assert response.status_code == (200 if stream else 503)
    error = events(response.text)[-1] if stream else response.json()
    assert error["error"]["code"] == "shutting_down"
    assert set(error["error"]) == {"message", "type", "param", "code"}
    assert response.headers.get("retry-after") == (None if stream else "1")
    assert names.HEADER_REQUEST_ID in response.headers
    assert b"Traceback" not in log


async def test_also_what_an_engine_was_asked_for_the_client(tmp_path):
    asked = asyncio.Event()

    async def engine(reader, writer):
        if (await reader.readline()).startswith(b"GET /v1/models"):
            asked.set()
            await reader.read()  # until the router gives up
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(engine, "127.0.0.1", 0) as server:
        only = {**D, "url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
        async with running(tmp_path, engines=[only], health_timeout_s=30) as (process, url):
            async with httpx.AsyncClient(base_url=url, timeout=10) as client:
                asking = asyncio.create_task(client.get("/v1/models"))
                await asyncio.wait_for(asked.wait(), 5)
                process.send_signal(signal.SIGINT)
                response = await asking
            _, log = await asyncio.wait_for(process.communicate(), 5)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")
    assert b"Traceback" not in log
