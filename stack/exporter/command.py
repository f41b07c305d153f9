"""turn finished traces into Prometheus metrics: the critical path by stage, with exemplars"""

from __future__ import annotations

import argparse
import logging
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from stack.analysis.source import SourceError
from stack.analysis.trace_input import duration_s
from stack.exporter.app import create_app
from stack.exporter.settings import ExporterSettings
from stack.exporter.state import StateError
from stack.serving import serve
from stack.settings_error import one_line

EXIT_FAILED, EXIT_USAGE = 1, 2

# Flag → setting and how to read it.
_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--url": ("tempo_url", str),
    "--host": ("host", str),
    "--port": ("port", int),
    "--state": ("state", Path),
    "--since": ("since_s", duration_s),
    "--shard": ("shard", int),
    "--shards": ("shards", int),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options; each overrides its ``KVPATH_EXPORTER_`` variable."""
    for flag, (name, kind) in _OPTIONS.items():
        field = ExporterSettings.model_fields[name]
        metavar, text = flag[2:].upper(), f"{field.description} (default {field.default})"
        if kind is duration_s:
            metavar, text = "DURATION", f"{field.description}: 90s, 15m, 2h (default: {field.default:g}s)"
        parser.add_argument(flag, dest=name, type=kind, default=None, help=text, metavar=metavar)


def run(args: argparse.Namespace) -> int:
    """Serves until SIGINT or SIGTERM. Returns 0, 1 when it cannot start, 2 for a wrong setting."""
    given = {name: getattr(args, name) for name, _ in _OPTIONS.values() if getattr(args, name) is not None}
    try:
        settings = ExporterSettings(**given)
    except (ValidationError, SettingsError) as error:
        print(f"kvpath export: {one_line(error)}", file=sys.stderr)
        return EXIT_USAGE
    try:
        listener = socket.create_server((settings.host, settings.port))
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        print(f"kvpath export: cannot listen on {where}: {error}; pick another --port", file=sys.stderr)
        return EXIT_FAILED
    with listener:
        return _serve(settings, listener)


def _serve(settings: ExporterSettings, listener: socket.socket) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        app = create_app(settings)
    except (SourceError, StateError) as error:
        print(f"kvpath export: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, SourceError) else EXIT_FAILED
    host, port = listener.getsockname()[:2]
    print(f"kvpath export: http://{host}:{port}/metrics, traces of {settings.tempo_url}", flush=True)
    serve(app, listener)
    return 0
