"""runs the embedded trace store (OTLP/HTTP in, Tempo's query API out)"""

from __future__ import annotations

import argparse
import socket
import sys
from pathlib import Path

from pydantic import ValidationError

from stack.serving import serve
from stack.settings_error import one_line
from stack.store.app import create_app
from stack.store.errors import StoreError
from stack.store.settings import StoreSettings

_OPTIONS = {"host": str, "port": int, "path": Path, "max_bytes": int, "retention_s": float}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options; each overrides its ``KVPATH_STORE_`` variable."""
    for name, kind in _OPTIONS.items():
        field = StoreSettings.model_fields[name]
        text = f"{field.description} (default {field.default})"
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=None, help=text)


def run(args: argparse.Namespace) -> int:
    """Serves until SIGINT or SIGTERM. Returns 0, 1 when the store cannot start, 2 for a wrong setting."""
    given = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    try:
        settings = StoreSettings(**given)
    except ValidationError as error:
        print(f"kvpath store: {one_line(error)}", file=sys.stderr)
        return 2
    try:
        listener = socket.create_server((settings.host, settings.port))
    except OSError as error:
        print(
            f"kvpath store: cannot listen on {settings.host}:{settings.port}: {error}; pick another --port",
            file=sys.stderr,
        )
        return 1
    with listener:
        return _serve(settings, listener)


def _serve(settings: StoreSettings, listener: socket.socket) -> int:
    try:
        app = create_app(settings)
    except StoreError as error:
        print(f"kvpath store: {error}", file=sys.stderr)
        return 1
    host, port = listener.getsockname()[:2]
    print(f"kvpath store: http://{host}:{port} (OTLP in, Tempo's API out), {settings.path}", flush=True)
    serve(app, listener)  # the writer then drains what was accepted
    return 0
