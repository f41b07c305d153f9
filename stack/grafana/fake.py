"""A stand-in for Grafana's HTTP API, for tests: answers as Grafana 13 documents, and refuses what that refuses.

Kept to what kvpath asks for: health, data sources and their queries, folders, dashboards with versions, annotations.
Status and wording of refusals are those of Grafana's documentation and sources.
"""

from __future__ import annotations

import copy
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

VERSION = "13.0.1"
OPEN_PATHS = frozenset({"/api/health"})  # asked without a token


@dataclass
class StoredVersion:
    model: dict[str, Any]
    folder_uid: str
    message: str


@dataclass
class FakeGrafana:
    """What it holds, and how it behaves. ``denied``: "METHOD /path" prefixes that the token may not use.

    ``managed``: Amazon's, without ``/api/health``. ``completes``: writes default values into what it saves, as
    Grafana 12 and later do. ``writes`` counts every request that changed something.
    """

    token: str = "glsa_right"
    folders: dict[str, str] = field(default_factory=dict)
    dashboards: dict[str, list[StoredVersion]] = field(default_factory=dict)
    provisioned: set[str] = field(default_factory=set)
    data_sources: dict[str, str] = field(default_factory=dict)  # uid → type
    up: list[float] = field(default_factory=lambda: [1.0, 1.0])
    traces: int = 1
    annotations: list[dict[str, Any]] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)  # uids of data sources whose server does not answer
    managed: bool = False
    completes: bool = False
    writes: int = 0

    def edited(self, uid: str, **changes: Any) -> None:
        """Somebody changes a dashboard in the browser."""
        newest = self.dashboards[uid][-1]
        self.dashboards[uid].append(StoredVersion(newest.model | changes, newest.folder_uid, ""))


@contextmanager
def serving(grafana: FakeGrafana) -> Iterator[str]:
    """Serves it on a free port of 127.0.0.1, from a thread, and gives its URL."""
    server = uvicorn.Server(uvicorn.Config(create_app(grafana), log_level="error", ws="none", lifespan="off"))
    listener = socket.create_server(("127.0.0.1", 0))  # from here on a connection waits, and is not refused
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def create_app(grafana: FakeGrafana) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def gate(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        path = request.url.path
        if path not in OPEN_PATHS and request.headers.get("authorization") != f"Bearer {grafana.token}":
            return _unknown(request)
        asked = f"{request.method} {path}"
        if any(asked.startswith(denied) for denied in grafana.denied):
            return JSONResponse(
                {
                    "accessErrorId": "ACE0000000001",
                    "message": f"You'll need additional permissions. Permissions needed: {asked}",
                    "title": "Access denied",
                },
                403,
            )
        return await call_next(request)

    _add_health(app, grafana)
    _add_data_sources(app, grafana)
    _add_folders(app, grafana)
    _add_dashboards(app, grafana)
    _add_annotations(app, grafana)
    return app


def _unknown(request: Request) -> Response:
    if "authorization" not in request.headers:
        return _error(401, "Unauthorized", messageId="auth.unauthorized", statusCode=401, traceID="")
    return _error(401, "Invalid API key", messageId="api-key.invalid", statusCode=401, traceID="")


def _error(code: int, message: str, **more: Any) -> Response:
    return JSONResponse({"message": message, **more}, code)


def _add_health(app: FastAPI, grafana: FakeGrafana) -> None:
    @app.get("/api/health")
    async def health() -> Response:
        if grafana.managed:
            return PlainTextResponse("Bad Request: Not allowed.", 400)
        return JSONResponse({"database": "ok", "version": VERSION, "commit": "0000000000"})

    @app.get("/api/frontend/settings")
    async def settings() -> Response:
        return JSONResponse({"buildInfo": {"version": VERSION, "edition": "Open Source"}})


def _add_data_sources(app: FastAPI, grafana: FakeGrafana) -> None:
    @app.get("/api/datasources/uid/{uid}")
    async def data_source(uid: str) -> Response:
        if uid not in grafana.data_sources:
            return _error(404, "Data source not found")
        kind = grafana.data_sources[uid]
        return JSONResponse({"id": 1, "orgId": 1, "uid": uid, "name": uid, "type": kind, "access": "proxy"})

    @app.post("/api/ds/query")
    async def query(request: Request) -> Response:
        asked = (await request.json())["queries"][0]
        uid = asked["datasource"]["uid"]
        if uid not in grafana.data_sources:
            return _error(404, "Data source not found", messageId="datasource.notFound")
        if uid in grafana.broken:
            error = "Post http://prometheus:9090/api/v1/query: connect: connection refused"
            return JSONResponse({"results": {asked["refId"]: {"error": error, "status": 500}}}, 400)
        assert asked["expr"] == "up"
        assert asked["instant"]
        frames = [
            {
                "schema": {"fields": [{"name": "Time", "type": "time"}, {"name": "Value", "type": "number"}]},
                "data": {"values": [[1700000000000], [value]]},
            }
            for value in grafana.up
        ]
        return JSONResponse({"results": {asked["refId"]: {"status": 200, "frames": frames}}})

    @app.get("/api/datasources/proxy/uid/{uid}/api/search")
    async def search(uid: str, q: str, limit: int) -> Response:
        if uid not in grafana.data_sources:
            return _error(404, "Data source not found")
        if uid in grafana.broken:
            return PlainTextResponse("", 502)
        traces = [{"traceID": "1", "rootTraceName": "chat"}] * min(limit, grafana.traces) if q == "{}" else []
        return JSONResponse({"traces": traces, "metrics": {}})


def _add_folders(app: FastAPI, grafana: FakeGrafana) -> None:
    @app.get("/api/folders/{uid}")
    async def folder(uid: str) -> Response:
        if uid not in grafana.folders:
            return _error(404, "folder not found", status="not-found")
        return JSONResponse({"uid": uid, "title": grafana.folders[uid], "version": 1})

    @app.post("/api/folders")
    async def create(request: Request) -> Response:
        asked = await request.json()
        if not asked.get("title"):
            return _error(400, "folder title cannot be empty")
        if asked["uid"] in grafana.folders:
            return _error(412, "a folder with the same UID already exists")
        grafana.folders[asked["uid"]] = asked["title"]
        grafana.writes += 1
        return JSONResponse({"uid": asked["uid"], "title": asked["title"], "version": 1})


def _add_dashboards(app: FastAPI, grafana: FakeGrafana) -> None:
    @app.get("/api/dashboards/uid/{uid}")
    async def dashboard(uid: str) -> Response:
        versions = grafana.dashboards.get(uid)
        if not versions:
            return _error(404, "Dashboard not found", status="not-found")
        newest, number = versions[-1], len(versions)
        meta = {"folderUid": newest.folder_uid, "provisioned": uid in grafana.provisioned, "version": number}
        return JSONResponse({"dashboard": newest.model | {"id": 7, "uid": uid, "version": number}, "meta": meta})

    @app.get("/api/dashboards/uid/{uid}/versions")
    async def history(uid: str, limit: int = 1000) -> Response:
        versions = grafana.dashboards.get(uid, [])
        rows = [
            {"uid": uid, "version": number, "message": each.message} for number, each in enumerate(versions, start=1)
        ]
        return JSONResponse({"continueToken": "", "versions": rows[::-1][:limit]})

    @app.post("/api/dashboards/db")
    async def save(request: Request) -> Response:
        return _save(grafana, await request.json())


def _save(grafana: FakeGrafana, asked: dict[str, Any]) -> Response:
    model = copy.deepcopy(asked["dashboard"])
    uid, versions = model["uid"], grafana.dashboards.get(model["uid"], [])
    folder_uid = asked.get("folderUid", "")
    if not model.get("title"):
        return _error(400, "Dashboard title cannot be empty", status="empty-name")
    if len(uid) > 40:
        return _error(400, "uid too long, max 40 characters")
    if folder_uid and folder_uid not in grafana.folders:
        return _error(400, "folder not found")
    if uid in grafana.provisioned:
        return _error(400, "Cannot save provisioned dashboard")
    if versions and not asked.get("overwrite") and model.get("version") != len(versions):
        return _error(412, "The dashboard has been changed by someone else", status="version-mismatch")
    stored = {key: value for key, value in model.items() if key not in ("id", "version")}
    if grafana.completes:
        stored = {"annotations": {"list": []}, "editable": True, "weekStart": ""} | stored
    grafana.dashboards.setdefault(uid, []).append(StoredVersion(stored, folder_uid, asked.get("message", "")))
    grafana.writes += 1
    number = len(grafana.dashboards[uid])
    return JSONResponse({"id": 7, "uid": uid, "url": f"/d/{uid}", "status": "success", "version": number})


def _add_annotations(app: FastAPI, grafana: FakeGrafana) -> None:
    @app.post("/api/annotations")
    async def annotate(request: Request) -> Response:
        asked = await request.json()
        if not asked.get("text"):
            return _error(400, "Failed to save annotation: text field should not be empty")
        grafana.annotations.append(asked)
        grafana.writes += 1
        return JSONResponse({"message": "Annotation added", "id": len(grafana.annotations)})
