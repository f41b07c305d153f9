"""Serves one application until the process is told to stop."""

from __future__ import annotations

import contextlib
import signal
import socket
from typing import Any

import uvicorn

SHUTDOWN_S = 3  # open requests may finish for this long


def serve(app: Any, listener: socket.socket) -> None:
    """Serves ``app`` (ASGI) on ``listener``; returns after SIGINT or SIGTERM. Main thread only."""
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=SHUTDOWN_S)
    for signal_ in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_, signal.default_int_handler)  # uvicorn raises the signal again when it has shut down
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
