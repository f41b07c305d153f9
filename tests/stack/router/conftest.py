"""A whole router on a real socket, in front of stub engines on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from redis.asyncio import Redis
from uvicorn.server import ServerState

from connector import names
from connector.bootstrap import Telemetry, start_telemetry
from stack.grafana.annotate import Annotator
from stack.router.app import RouterApp, create_app
from stack.router.conversations.redis_server import redis_server
from stack.router.settings import DECODE, PREFILL, ROUTED_TRANSFERS, RouterSettings
from stack.router.stub_engine import StubEngine


@dataclass
class RunningRouter:
    """A router that serves, and all that a test looks at."""

    app: RouterApp
    client: httpx.AsyncClient
    telemetry: Telemetry
    exporter: InMemorySpanExporter
    port: int

    async def complete(self, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"prompt": "natural text", **body}, headers=headers)

    async def chat(self, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "natural text"}]
        return await self.client.post("/v1/chat/completions", json={"messages": messages, **body}, headers=headers)

    async def spans(self, server: int = 1) -> list[ReadableSpan]:
        """Returns all spans, once ``server`` SERVER spans ended and nothing is in flight."""
        async with asyncio.timeout(5):
            while True:
                await asyncio.to_thread(self.telemetry.flush)
                found = list(self.exporter.get_finished_spans())
                if sum(span.kind.name == "SERVER" for span in found) >= server and self.idle:
                    return found
                await asyncio.sleep(0.005)  # the spans of a request end after its client has its answer

    @property
    def idle(self) -> bool:
        return all(engine.requests == 0 and engine.work == 0 for engine in self.app.pool.engines)

    async def metric(self, sample: str) -> float:
        """Returns the value of one sample of ``/metrics``, or 0.0 when it is not there."""
        text = (await self.client.get("/metrics")).text
        values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.rsplit(" ", 1)[0] == sample]
        return float(values[0]) if values else 0.0


StartRouter = Callable[..., AbstractAsyncContextManager[RunningRouter]]


class ManualClock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@asynccontextmanager
async def start_router(
    *stubs: StubEngine,
    telemetry: Telemetry | None = None,
    clock: Callable[[], float] = time.monotonic,
    annotator: Annotator | None = None,
    **given: Any,
) -> AsyncIterator[Any]:
    exporter = InMemorySpanExporter()
    telemetry = telemetry or start_telemetry(names.SERVICE_ROUTER, None, exporter=exporter)
    settings = RouterSettings(
        engines=tuple(stub.settings for stub in stubs),
        **{"allow_mode_header": True, "health_interval_s": 0.05, **given},
    )
    app = create_app(settings, telemetry, clock, annotator)
    async with serve(app) as port:
        base = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=base, timeout=10, verify=False) as client:
            yield RunningRouter(app, client, telemetry, exporter, port)


@asynccontextmanager
async def serve(app: RouterApp) -> AsyncIterator[int]:
    """Serves with uvicorn's protocol, without the ticks of its server loop: they would be most of the tests' time."""
    config = uvicorn.Config(app, log_level="error", ws="none", lifespan="on")
    config.load()
    lifespan = config.lifespan_class(config)
    await lifespan.startup()
    assert not lifespan.should_exit, "the application did not start"
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: config.http_protocol_class(config=config, server_state=state, app_state=lifespan.state),
        "127.0.0.1",
        0,
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in list(state.connections):
            connection.shutdown()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        await lifespan.shutdown()


@pytest.fixture
async def prefill() -> AsyncIterator[StubEngine]:
    async with StubEngine(PREFILL, "P0") as stub:
        yield stub


@pytest.fixture
async def decode() -> AsyncIterator[StubEngine]:
    async with StubEngine(DECODE, "D0") as stub:
        yield stub


@pytest.fixture
async def router(prefill: StubEngine, decode: StubEngine) -> AsyncIterator[RunningRouter]:
    """One P, one D, mode chosen by header or push."""
    async with start_router(prefill, decode) as running:
        yield running


@pytest.fixture
def start() -> StartRouter:
    return start_router


def events_of(text: str) -> list[Any]:
    """Parses an event stream's data lines; ``[DONE]`` stays a string."""
    data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


@pytest.fixture
def events() -> Callable[[str], list[Any]]:
    return events_of


def assert_consistent(spans: list[ReadableSpan], error_type: str | None = None) -> ReadableSpan:
    """Checks what holds for every trace of one request, and returns its SERVER span."""
    (server,) = [span for span in spans if span.kind.name == "SERVER"]
    assert len({span.context.trace_id for span in spans}) == 1
    for span in spans:
        assert span.end_time is not None
        assert span.start_time <= span.end_time
        assert span.attributes[names.ATTR_REQUEST_ID] == server.attributes[names.ATTR_REQUEST_ID]
        if span is not server:
            assert names.ATTR_MODE in span.attributes
            assert span.parent.span_id == server.context.span_id
        failed = span.status.status_code is StatusCode.ERROR
        assert failed == (names.ATTR_ERROR_TYPE in span.attributes)
    assert server.attributes.get(names.ATTR_ERROR_TYPE) == error_type
    return server


@pytest.fixture
def consistent() -> Callable[..., ReadableSpan]:
    return assert_consistent


@pytest.fixture(params=[names.MODE_PUSH, names.MODE_PULL])
def mode(request: pytest.FixtureRequest) -> dict[str, str]:
    """The header that asks for each of the transfer modes in turn."""
    return {names.HEADER_MODE: request.param}


@asynccontextmanager
async def open_stream(router: RunningRouter, path: str = "/v1/completions", **body: Any) -> AsyncIterator[Any]:
    """A streaming request over a bare socket, so that a test decides when the client leaves."""
    headers = body.pop("headers", {})
    data = json.dumps({"prompt": "natural text", "stream": True, **body}).encode()
    lines = [f"POST {path} HTTP/1.1", "host: t", f"content-length: {len(data)}"]
    lines += [f"{key}: {value}" for key, value in headers.items()]
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    writer.write("\r\n".join([*lines, "", ""]).encode() + data)
    try:
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.fixture
def client_stream() -> Callable[..., AbstractAsyncContextManager[asyncio.StreamReader]]:
    return open_stream


@pytest.fixture
async def reusing_prefill() -> AsyncIterator[StubEngine]:
    async with StubEngine(PREFILL, "P0", modes=ROUTED_TRANSFERS) as stub:
        yield stub


@pytest.fixture
async def reusing_decode() -> AsyncIterator[StubEngine]:
    async with StubEngine(DECODE, "D0", modes=ROUTED_TRANSFERS) as stub:
        yield stub


@pytest.fixture
async def redis_url(a_redis: str) -> AsyncIterator[str]:
    """A server with nothing on it."""
    yield a_redis
    async with Redis.from_url(a_redis) as client:
        await client.flushall()


@pytest.fixture(scope="session")
def a_redis() -> Iterator[str]:
    with redis_server() as url:
        yield url
