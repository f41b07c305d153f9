from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from stack.image.healthy import main


@contextmanager
def serving(answers: dict[str, tuple[int, Any]]) -> Iterator[str]:
    """Serves ``path → (status, JSON)`` on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, {}))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_answer_of_200_is_healthy() -> None:
    with serving({"/ready": (200, {})}) as url:
        assert main([f"{url}/ready"]) == 0


def test_what_a_part_says_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/ready": (503, {"reasons": ["no healthy decode engine"]})}) as url:
        assert main([f"{url}/ready"]) == 1
    assert "503" in (printed := capsys.readouterr().out)
    assert "no healthy decode engine" in printed


def test_nobody_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({}) as url:
        pass
    assert main([f"{url}/ready"]) == 1
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize(
    ("models", "status"),
    [((200, {"data": [{"id": "m"}]}), 0), ((200, {"data": []}), 1), ((500, {}), 1), ((200, {}), 1), ((200, []), 1)],
)
def test_an_engine_has_to_serve_a_model(models: tuple[int, Any], status: int) -> None:
    with serving({"/health": (200, {}), "/v1/models": models}) as url:
        assert main([f"{url}/health", "--serves-a-model"]) == status


def test_a_proxy_in_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving({"/ready": (200, {})}) as url:
        assert main([f"{url}/ready"]) == 0
