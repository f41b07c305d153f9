"""The exporter's HTTP face: ``/metrics`` for Prometheus, ``/health`` that proves that traces are being counted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client.exposition import choose_encoder

from stack.analysis.source import TraceSource
from stack.exporter.follower import Follower
from stack.exporter.loop import PollLoop
from stack.exporter.metrics import ExporterMetrics
from stack.exporter.settings import ExporterSettings
from stack.exporter.state import State

_log = logging.getLogger(__name__)


def create_app(settings: ExporterSettings, clock: Callable[[], float] = time.time) -> FastAPI:
    """Opens the state and returns the application, which polls from its start to its shutdown.

    Raises SourceError for what is no URL and StateError when the state cannot be used.
    """
    metrics = ExporterMetrics()
    source = TraceSource(settings.tempo_url)
    state = State(settings.state)
    follower = Follower(settings, source, state, metrics, clock)
    loop = PollLoop(follower, metrics, settings.poll_s)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loop.start()
        yield
        if await asyncio.to_thread(loop.stop):
            follower.close()
            source.close()
            state.close()
        else:
            _log.warning("critical-path exporter: the last poll did not end in time; it counts after the next start")

    app = FastAPI(title="kvpath exporter", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/metrics")
    def exposition(request: Request) -> Response:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encoder(metrics.registry), headers={"content-type": content_type})

    @app.get("/health")
    def health() -> Response:
        trouble = loop.trouble()
        if not trouble:
            return JSONResponse({"status": "counting"})
        error = {"message": trouble, "type": "server_error", "param": None, "code": "not_counting"}
        return JSONResponse({"error": error}, status_code=503)

    return app
