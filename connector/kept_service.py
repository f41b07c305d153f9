"""The kept service: D tells the router over HTTP what it keeps of a finished request.

A streamed response has no field for it, and the client needs none of it. ``GET /kept/{request id}``, the router's own
id of the finished turn, answers 200 with ``{"params": {...}, "tokens": N, "expires_in_s": S}`` or 404 once the blocks
are free. Runs in daemon threads of D's scheduler process, one for each open connection, at most ``MAX_CONNECTIONS``.
"""

from __future__ import annotations

import http.server
import json
import logging
import threading
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from connector.kept import KeptLedger

logger = logging.getLogger(__name__)

PATH = "/kept/"
MAX_CONNECTIONS = 64
IDLE_TIMEOUT_S = 60.0  # of a connection between requests


class KeptServiceError(RuntimeError):
    """The kept service cannot listen where it was told to."""


class KeptService:
    """Serves one ledger; listens from construction until :meth:`close`. ``port`` 0 takes a free one."""

    def __init__(self, ledger: KeptLedger, host: str, port: int) -> None:
        try:
            self._server = _Server((host, port), ledger)
        except (OSError, OverflowError) as error:
            raise KeptServiceError(
                f"the kept service of mode reuse cannot listen on {host}:{port}: {error}; choose another "
                "kvpath_kept_port, or leave it out to serve without reuse"
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="kvpath-kept", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2.0)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a router that keeps its connection open must not hold the engine's shutdown up

    def __init__(self, address: tuple[str, int], ledger: KeptLedger) -> None:
        self.ledger = ledger
        self._free = threading.Semaphore(MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a connection to the kept service broke", exc_info=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_TIMEOUT_S
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        found = self.server.ledger.find(unquote(self.path[len(PATH) :])) if self.path.startswith(PATH) else None
        if found is None:
            error = {
                "message": "D keeps nothing of this request: unknown, expired or already released",
                "type": "not_found_error",
                "param": None,
                "code": "not_kept",
            }
            self._answer(HTTPStatus.NOT_FOUND, {"error": error})
            return
        kept, left_s = found
        self._answer(HTTPStatus.OK, {"params": kept.params, "tokens": kept.tokens, "expires_in_s": left_s})

    def _answer(self, status: HTTPStatus, body: dict[str, Any]) -> None:
        payload = json.dumps(body, separators=(",", ":")).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *args: Any) -> None:
        pass
