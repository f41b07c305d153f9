"""Fixtures of the analysis tests: the golden traces, and a real HTTP server that answers as a trace store."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stack.analysis.otlp_json import read_file
from stack.analysis.trace import Trace

GOLDEN = Path(__file__).parents[2] / "golden"

Answer = tuple[int, str]


@pytest.fixture
def golden() -> Callable[[str], Trace]:
    """Reads one golden trace by the name of its file."""

    def read(name: str) -> Trace:
        (trace,) = read_file(GOLDEN / f"{name}.json")
        return trace

    return read


class StoreDouble:
    """A trace store on 127.0.0.1 whose answers a test sets: path without query → (status, body)."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.requests: list[str] = []
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                double.requests.append(self.path)
                status, body = double.answers.get(self.path.split("?")[0], (404, "trace not found"))
                payload = body.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, path: str, body: Any, status: int = 200) -> None:
        self.answers[path] = (status, body if isinstance(body, str) else json.dumps(body))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def store() -> Iterator[StoreDouble]:
    double = StoreDouble()
    try:
        yield double
    finally:
        double.close()
