"""Stands between the engines and the trace store, and misbehaves on request: closed, slow, or answering 500."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

import httpx

Behaviour = Literal["pass", "slow", "error", "closed"]
SLOW_S = 20.0


class Gate:
    """An OTLP/HTTP endpoint on loopback that forwards to ``target`` unless told otherwise."""

    def __init__(self, target: str, port: int) -> None:
        self._target = target
        self._address = ("127.0.0.1", port)
        self._behaviour: Behaviour = "pass"
        self._released = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self.refused = 0
        self._open()

    @property
    def url(self) -> str:
        return f"http://{self._address[0]}:{self._address[1]}"

    @contextmanager
    def behaving(self, behaviour: Behaviour) -> Iterator[None]:
        """Misbehaves inside the block; behind it everything passes again."""
        self._behaviour = behaviour
        self._released.clear()
        if behaviour == "closed":
            self.close()
        try:
            yield
        finally:
            self._behaviour = "pass"
            self._released.set()
            if behaviour == "closed":
                self._open()

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def handle(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        if self._behaviour == "error":
            self.refused += 1
            return 500, b""
        if self._behaviour == "slow":
            self._released.wait(SLOW_S)
        answer = httpx.post(f"{self._target}/v1/traces", content=body, headers=headers, trust_env=False)
        return answer.status_code, answer.content

    def _open(self) -> None:
        gate = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                kept = {k: v for k, v in self.headers.items() if k.lower() in ("content-type", "content-encoding")}
                status, content = gate.handle(body, kept)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(self._address, Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="gate", daemon=True).start()
