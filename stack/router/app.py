"""Builds the router's web application: generation endpoints as plain ASGI, the rest in FastAPI.

A generation request does not pass FastAPI's stack: every layer there costs a coroutine a chunk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException
from starlette.routing import Route

from connector.bootstrap import Telemetry, start_telemetry
from connector.names import SERVICE_ROUTER
from stack.grafana.annotate import Annotator
from stack.router.admin import admin_routes
from stack.router.annotations import SplitAnnotations
from stack.router.bodies import CHAT_PATH, COMPLETIONS_PATH
from stack.router.conversations.memory import Memory
from stack.router.conversations.process_memory import ProcessMemory
from stack.router.conversations.turns import Conversations, Limits
from stack.router.endpoint import GenerationEndpoint
from stack.router.errors import NoEngineError, RouterError, ShuttingDownError, error_body
from stack.router.health import HealthWatch
from stack.router.metrics import MemoryCollector, RouterMetrics, StateCollector
from stack.router.mode import ModePolicy
from stack.router.pool import EnginePool
from stack.router.proxy import Proxy
from stack.router.settings import DECODE, PREFILL, RouterSettings, configured_modes
from stack.router.spans import Spans, TelemetryErrors
from stack.router.upstream import Upstream

TELEMETRY_SHUTDOWN_S = 2.0  # with the grace for requests in flight, well under 5 s
GENERATION_PATHS = frozenset({CHAT_PATH, COMPLETIONS_PATH})


class RouterApp(FastAPI):
    """FastAPI, with the generation endpoints taken out in front of it. ``pool`` is there for tests."""

    pool: EnginePool
    generation: GenerationEndpoint

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in GENERATION_PATHS:
            await self.generation(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(
    settings: RouterSettings,
    telemetry: Telemetry | None = None,
    clock: Callable[[], float] = time.monotonic,
    annotator: Annotator | None = None,
) -> RouterApp:
    """Builds the application. Engines are probed, and connections made, once it is started.

    ``telemetry`` defaults to one that exports to ``settings.otlp_endpoint``; it is shut down with the application.
    ``clock`` is what conversations age by, in seconds. ``annotator`` marks changes of the split in Grafana.
    Raises ``ValueError`` when the settings ask for shared memory and the ``redis`` package is not there.
    """
    running = telemetry or start_telemetry(SERVICE_ROUTER, settings.otlp_endpoint)
    errors = TelemetryErrors()
    pool = EnginePool(settings.engines)
    metrics = RouterMetrics(errors)
    upstream, policy = _upstream(settings, metrics.retried), _policy(settings)
    metrics.registry.register(StateCollector(pool, lambda: policy.split, running.counts, errors))
    memory = _memory(settings, clock)
    metrics.registry.register(MemoryCollector(memory))
    limits = Limits(
        settings.reuse_ttl_s, settings.reuse_margin_s, settings.reuse_min_tokens, settings.reuse_kept_timeout_s
    )
    conversations = Conversations(memory, settings.engines, upstream.fetch, limits, clock, metrics.not_kept)
    proxy = Proxy(pool, upstream, metrics, conversations, settings.deadline_s)
    health = HealthWatch(upstream, pool, settings.health_interval_s)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await upstream.start()
        await health.start()
        try:
            yield
        finally:
            await health.stop()
            await proxy.stop()
            await conversations.stop()
            await upstream.stop()
            await asyncio.to_thread(running.shutdown, TELEMETRY_SHUTDOWN_S)

    app = RouterApp(title="kvpath router", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.pool = pool
    app.generation = GenerationEndpoint(settings, policy, proxy, conversations, Spans(running.tracer, errors), metrics)
    if settings.admin_token is not None:
        annotations = SplitAnnotations(annotator, metrics.annotated) if annotator is not None else None
        app.include_router(admin_routes(settings.admin_token, settings, policy, annotations))
    _add_state_routes(app, policy, metrics)
    _add_models_route(app, upstream)
    for path in GENERATION_PATHS:  # for other methods: 405 and which one is allowed
        app.router.routes.append(Route(path, app.generation, methods=["POST"]))
    _add_error_shape(app)
    return app


def _upstream(settings: RouterSettings, on_retry: Callable[[], None]) -> Upstream:
    return Upstream(
        connect_timeout_s=settings.connect_timeout_s,
        idle_s=settings.stream_idle_s,
        keepalive_s=settings.keepalive_s,
        get_timeout_s=settings.health_timeout_s,
        on_retry=on_retry,
    )


def _policy(settings: RouterSettings) -> ModePolicy:
    return ModePolicy(
        settings.default_mode,
        settings.split,
        allow_header=settings.allow_mode_header,
        configured=configured_modes(settings),
    )


def _memory(settings: RouterSettings, clock: Callable[[], float]) -> Memory:
    retain_s = 2 * settings.reuse_ttl_s  # an expired entry is still told from one that never was
    if settings.reuse_store_url is None:
        return ProcessMemory(settings.reuse_max_conversations, retain_s, clock)
    try:
        from stack.router.conversations.shared_memory import SharedMemory
    except ImportError:
        raise ValueError("reuse_store_url needs the redis package: pip install 'kvpath[redis]'") from None
    return SharedMemory(settings.reuse_store_url.get_secret_value(), retain_s, settings.reuse_kept_timeout_s)


def _add_state_routes(app: RouterApp, policy: ModePolicy, metrics: RouterMetrics) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/ready")
    async def ready(response: Response) -> dict[str, Any]:
        modes = policy.served()
        lacks = app.pool.lacks(modes)
        response.status_code = 503 if lacks else 200
        return {"ready": not lacks, "modes": list(modes), "reasons": lacks}

    @app.get("/metrics")
    async def metrics_page(request: Request) -> Response:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encoder(metrics.registry), headers={"content-type": content_type})


def _add_models_route(app: RouterApp, upstream: Upstream) -> None:
    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        healthy = [engine for engine in app.pool.engines if engine.healthy]
        if not healthy:
            raise NoEngineError("no engine is healthy; retry when /ready answers 200")
        engine = min(healthy, key=lambda engine: (engine.settings.role != DECODE, engine.settings.role != PREFILL))
        authorization = request.headers.get("authorization")
        headers = {"authorization": authorization} if authorization else None
        try:
            status, body = await upstream.get(engine, "/v1/models", headers)
        except asyncio.CancelledError:  # the server's, which waits no longer; raised again it would answer by itself
            raise ShuttingDownError() from None
        return Response(body, status, media_type="application/json")


def _add_error_shape(app: RouterApp) -> None:
    """Makes every error of the FastAPI part look like OpenAI's."""

    @app.exception_handler(RouterError)
    async def of_router(_: Request, error: RouterError) -> Response:
        headers = {key.decode(): value.decode() for key, value in error.headers()}
        return Response(error.body(), error.status, headers)

    @app.exception_handler(HTTPException)
    async def of_http(_: Request, error: HTTPException) -> Response:
        kind = "invalid_request_error" if error.status_code < 500 else "internal_error"
        body = error_body(str(error.detail), kind, str(error.status_code))
        return Response(body, error.status_code, error.headers, media_type="application/json")

    @app.exception_handler(RequestValidationError)
    async def of_validation(_: Request, error: RequestValidationError) -> Response:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return Response(
            error_body(problems, "invalid_request_error", "invalid_body"), 400, media_type="application/json"
        )
