"""A store served from a thread of this process, on a free loopback port: for the benchmark and for tests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serves ``app`` while the block runs and yields its base URL; shuts it down cleanly at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="kvpath-store-server")
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"  # connections wait in the listener until it serves
        finally:
            server.should_exit = True
            thread.join()
