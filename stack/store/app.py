"""The store's HTTP face: OTLP/HTTP in (``/v1/traces``), Tempo's query API out, the page, ``/metrics``, ``/ready``.

The event loop only moves bytes; decoding, searching and storing run on worker threads. An export is answered when it
is committed, so that what was accepted can be read at once and survives a crash of the process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import ClientDisconnect, Request

from stack.store import database, reader, tags, tempo
from stack.store.errors import BodyTooLargeError, StoreError, TraceNotFoundError, UnavailableError
from stack.store.ingest import Ingest, failure_body, success_body
from stack.store.metrics import StoreMetrics
from stack.store.search import read_request, search
from stack.store.settings import StoreSettings
from stack.store.writer import Writer
from stack.view.app import add_view
from stack.view.store_feed import StoreFeed
from stack.view.verdict import result_beside

log = logging.getLogger(__name__)

CONCURRENT_SEARCHES = 2  # they hold the interpreter; more at once only slow the senders down


def create_app(settings: StoreSettings, clock_ns: Callable[[], int] = time.time_ns) -> FastAPI:
    """Opens the database (raises StorageError) and returns the application; its shutdown closes the database."""
    metrics = StoreMetrics()
    writer = Writer(settings, metrics, clock_ns)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        if not await asyncio.to_thread(writer.stop):
            log.error("trace store %s: the last batches were not written in time", settings.path)

    app = FastAPI(title="kvpath trace store", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.writer = writer
    app.state.metrics = metrics
    app.add_exception_handler(StoreError, _query_error)
    _add_ingest(app, settings, Ingest(settings, metrics, writer))
    _add_traces(app, settings)
    _add_search(app, settings)
    _add_status(app, settings, metrics, writer)
    add_view(app, StoreFeed(settings.path), result_beside(settings.path))
    return app


async def _query_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, StoreError)
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    content = {"error": {"message": str(error), "type": kind, "param": None, "code": error.reason}}
    return JSONResponse(content, status_code=error.status, headers=_retry_after(error))


def _retry_after(error: StoreError) -> dict[str, str]:
    return {"Retry-After": str(error.retry_after_s)} if isinstance(error, UnavailableError) else {}


def _add_ingest(app: FastAPI, settings: StoreSettings, ingest: Ingest) -> None:
    @app.post("/v1/traces")
    async def export(request: Request) -> Response:
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        encoding = request.headers.get("content-encoding", "").strip().lower()
        try:
            body = await _read(request, settings.max_body_bytes)
            batch = await ingest.accept(body, media_type, encoding)
        except ClientDisconnect:
            return Response(status_code=400)
        except StoreError as error:
            ingest.count_refusal(error)
            content, media_type = failure_body(error, media_type)
            return Response(content, error.status, _retry_after(error), media_type)
        content, media_type = success_body(batch, media_type)
        return Response(content, media_type=media_type)


async def _read(request: Request, limit: int) -> bytes:
    pieces, total = [], 0
    async for piece in request.stream():
        total += len(piece)
        if total > limit:
            raise BodyTooLargeError(f"the body exceeds {limit} bytes (max_body_bytes); send smaller batches")
        pieces.append(piece)
    return b"".join(pieces)


def _add_traces(app: FastAPI, settings: StoreSettings) -> None:
    def fetch(request: Request, trace_id: str, body: Callable[[Any, bool], bytes]) -> Response:
        traces = reader.load(settings.path, tempo.trace_id_from(trace_id))
        if traces is None:
            raise TraceNotFoundError(f"trace {trace_id} is not in the store (unknown, not yet received, or evicted)")
        protobuf = tempo.wants_protobuf(request.headers.get("accept", ""))
        return Response(body(traces, protobuf), media_type=tempo.PROTOBUF if protobuf else tempo.JSON)

    @app.get("/api/traces/{trace_id}")
    def trace_v1(request: Request, trace_id: str) -> Response:
        return fetch(request, trace_id, tempo.body_v1)

    @app.get("/api/v2/traces/{trace_id}")
    def trace_v2(request: Request, trace_id: str) -> Response:
        return fetch(request, trace_id, tempo.body_v2)


def _add_search(app: FastAPI, settings: StoreSettings) -> None:
    turn = asyncio.Semaphore(CONCURRENT_SEARCHES)

    @app.get("/api/search")
    async def find(request: Request) -> Response:
        wanted = read_request(dict(request.query_params))
        async with turn:
            found = await asyncio.to_thread(search, settings.path, wanted, settings.search_timeout_s)
        return JSONResponse(found)

    @app.get("/api/search/tags")
    def names_v1(scope: str = "") -> Response:
        found = tags.tag_names(settings.path, scope)
        return JSONResponse({"tagNames": sorted({name for scoped in found.values() for name in scoped})})

    @app.get("/api/v2/search/tags")
    def names_v2(scope: str = "") -> Response:
        found = tags.tag_names(settings.path, scope)
        return JSONResponse({"scopes": [{"name": name, "tags": tagged} for name, tagged in found.items()]})

    @app.get("/api/search/tag/{tag:path}/values")
    def values_v1(tag: str) -> Response:
        return JSONResponse({"tagValues": [item["value"] for item in tags.tag_values(settings.path, tag)]})

    @app.get("/api/v2/search/tag/{tag:path}/values")
    def values_v2(tag: str) -> Response:
        return JSONResponse({"tagValues": tags.tag_values(settings.path, tag)})


def _add_status(app: FastAPI, settings: StoreSettings, metrics: StoreMetrics, writer: Writer) -> None:
    @app.get("/api/echo")
    def echo() -> Response:
        return PlainTextResponse("echo")

    @app.get("/ready")
    def ready() -> Response:
        if writer.failure is not None:
            raise writer.failure
        return PlainTextResponse("ready")

    @app.get("/metrics")
    def exposition() -> Response:
        metrics.database_bytes.set(database.file_bytes(settings.path))
        metrics.queue_bytes.set(writer.pending_bytes)
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)
