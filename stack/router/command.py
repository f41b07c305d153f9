"""Serve OpenAI requests over prefill and decode engines, by push or pull."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from pydantic_settings import SettingsError

from stack.grafana.annotate import annotator_from_environment
from stack.router.app import create_app
from stack.router.settings import RouterSettings
from stack.settings_error import one_line

BACKLOG = 2048


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of ``kvpath router``; what is not given comes from ``--config`` or ``KVPATH_ROUTER_*``."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="JSON file with the router's settings")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8000; 0 takes a free one)")
    parser.add_argument("--otlp-endpoint", metavar="URL", help="OTLP/HTTP base URL for spans; none: no tracing")


def run(args: argparse.Namespace) -> int:
    """Serves until told to stop. Returns 0, 1 when it cannot listen, 2 for a configuration that makes no sense."""
    try:
        settings = read_settings(args)
        app = create_app(settings, annotator=annotator_from_environment())
    except (ValueError, OSError, SettingsError) as error:
        print(f"kvpath router: {one_line(error)}", file=sys.stderr)
        return 2
    try:
        listener = _listen(settings.host, settings.port)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        print(f"kvpath router: cannot listen on {where} ({error.strerror}); try another --port", file=sys.stderr)
        return 1
    host, port = listener.getsockname()[:2]
    print(f"kvpath router: listening on http://{host}:{port}", flush=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=settings.shutdown_grace_s,
    )
    # The server stops on either signal and raises it again afterwards; by then all is done.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def read_settings(args: argparse.Namespace) -> RouterSettings:
    """Reads flags, then ``--config``, then the environment. Raises ``ValueError`` or ``OSError``."""
    given: dict[str, Any] = {}
    if args.config is not None:
        try:
            given = json.loads(args.config.read_text())
        except ValueError as error:  # also what is not text
            raise ValueError(f"{args.config} is not a JSON file: {error}") from None
        if not isinstance(given, dict):
            raise ValueError(f"{args.config} must hold a JSON object")
    flags = {"host": args.host, "port": args.port, "otlp_endpoint": args.otlp_endpoint}
    given.update({key: value for key, value in flags.items() if value is not None})
    return RouterSettings(**given)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.listen(BACKLOG)
    listener.set_inheritable(True)
    return listener
