"""The page's HTTP face: ``/view/`` and its data under ``/view/api/``; added to the store's application or alone.

Handlers are plain functions, so that analysis runs on worker threads and not on the event loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Query
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.requests import Request

from stack.analysis.source import SourceError
from stack.view import assemble
from stack.view.analysed import AnalysedTraces
from stack.view.comparison import comparison_document
from stack.view.detail import request_detail
from stack.view.feed import Feed
from stack.view.rows import STAGE_ORDER
from stack.view.verdict import verdict_document

PATH = "/view/"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def create_app(feed: Feed, result: Path | None = None) -> FastAPI:
    """Returns an application that serves the page alone."""
    app = FastAPI(title="kvpath view", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(SourceError, _source_error)
    add_view(app, feed, result)
    return app


async def _source_error(_: Request, error: Exception) -> Response:
    return _error(503, str(error), "source_unavailable", kind="server_error")


def _error(status: int, message: str, code: str, kind: str = "invalid_request_error") -> Response:
    content = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return JSONResponse(content, status_code=status, headers=_HEADERS)


def _answer(content: Any) -> Response:
    return JSONResponse(content, headers=_HEADERS)


def add_view(app: FastAPI, feed: Feed, result: Path | None = None) -> None:
    """Adds the page of ``feed`` to ``app``; ``result`` is where the experiment's result would lie."""
    _add_page(app)
    _add_data(app, AnalysedTraces(feed), result)


def _add_page(app: FastAPI) -> None:
    @app.get("/")
    @app.get(PATH.rstrip("/"))
    def to_page() -> Response:
        return RedirectResponse(PATH)

    @app.get(PATH)
    def page() -> Response:
        headers = {**_HEADERS, "Content-Security-Policy": assemble.PAGE_POLICY}
        return Response(assemble.page(), media_type="text/html", headers=headers)

    @app.get(f"{PATH}page.js")
    def script() -> Response:
        return Response(assemble.script(), media_type="text/javascript", headers=_HEADERS)

    @app.get(f"{PATH}page.css")
    def style() -> Response:
        return Response(assemble.style(), media_type="text/css", headers=_HEADERS)


def _add_data(app: FastAPI, traces: AnalysedTraces, result: Path | None) -> None:
    source = {"source": traces.feed.name}

    @app.get(f"{PATH}api/requests")
    def requests() -> Response:
        entries, left = traces.refresh()
        about = source | {"empty": traces.feed.empty, "left": left, "stage_order": STAGE_ORDER}
        return _answer(about | {"requests": [entry.row for entry in entries]})

    @app.get(f"{PATH}api/requests/{{wanted}}")
    def request(wanted: str) -> Response:
        traces.refresh()
        trace = traces.find(wanted)
        if trace is None:
            message = f"there is no request {wanted[:80]!r} here: unknown, not yet received, or evicted"
            return _error(404, message, "not_found")
        return _answer(source | request_detail(trace, traces.pooled))

    @app.get(f"{PATH}api/comparison")
    def comparison(newest_s: float | None = Query(default=None, gt=0)) -> Response:
        """``newest_s``: only requests that began at most so long before the newest one."""
        entries, left = traces.refresh()
        if newest_s is not None:
            newest = max((e.row["start_ms"] for e in entries), default=0.0)
            entries = [e for e in entries if e.row["start_ms"] >= newest - newest_s * 1000]
        beside = verdict_document(result, [e.analysed.trace_id for e in entries])["beside"]
        about = source | {"left": left, "beside": beside}
        return _answer(about | comparison_document([e.analysed for e in entries]))

    @app.get(f"{PATH}api/verdict")
    def verdict() -> Response:
        entries, _ = traces.refresh()
        return _answer(source | verdict_document(result, [e.analysed.trace_id for e in entries]))
