"""What tests and the benchmark need of a store: one served from a thread of this process, traces to send, a client."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stack.store.app import create_app
from stack.store.otlp import PROTOBUF
from stack.store.settings import StoreSettings


@contextmanager
def served(app: FastAPI, port: int = 0) -> Iterator[str]:
    """Serves ``app`` while the block runs and yields its base URL; shuts it down cleanly at the end."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="kvpath-store-server")
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"  # connections wait in the listener until it serves
        finally:
            server.should_exit = True
            thread.join()


T0 = 1_700_000_000_000_000_000
_serial = itertools.count(1)


@dataclass
class SpanSpec:
    """A span to send; times in ms after T0."""

    trace: int
    name: str = "chat"
    service: str = "kvpath-router"
    start_ms: int = 0
    duration_ms: float = 10
    parent: bytes = b""
    attributes: dict[str, Any] = field(default_factory=dict)
    status: int = 0
    kind: int = 1
    span_id: bytes = b""


def request_of(*specs: SpanSpec) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    for spec in specs:
        resource_spans = request.resource_spans.add()
        resource_spans.resource.attributes.add(key="service.name").value.string_value = spec.service
        span = resource_spans.scope_spans.add().spans.add()
        span.trace_id = spec.trace.to_bytes(16, "big")
        span.span_id = spec.span_id or next(_serial).to_bytes(8, "big")
        span.parent_span_id = spec.parent
        span.name, span.kind, span.status.code = spec.name, spec.kind, spec.status
        span.start_time_unix_nano = T0 + spec.start_ms * 10**6
        span.end_time_unix_nano = span.start_time_unix_nano + int(spec.duration_ms * 10**6)
        for key, value in spec.attributes.items():
            _set(span.attributes.add(key=key).value, value)
    return request


def _set(target: Any, value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _set(target.array_value.values.add(), item)
    else:
        kind = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value"}[type(value)]
        setattr(target, kind, value)


class StoreClient(httpx.Client):
    """An HTTP client of one store."""

    def export(self, *specs: SpanSpec) -> httpx.Response:
        return self.send_request(request_of(*specs))

    def send_request(self, request: ExportTraceServiceRequest, **headers: str) -> httpx.Response:
        return self.post(
            "/v1/traces", content=request.SerializeToString(), headers={"Content-Type": PROTOBUF, **headers}
        )

    def search(self, query: str, **parameters: Any) -> list[dict[str, Any]]:
        answer = self.get("/api/search", params={"q": query} | parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()["traces"]

    def found(self, query: str, **parameters: Any) -> set[int]:
        """Returns the numbers of the traces that a query finds."""
        return {int(trace["traceID"], 16) for trace in self.search(query, limit=1000, **parameters)}

    def metric(self, name: str, labels: str = "") -> float:
        lines = self.get("/metrics").text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{labels} "))


@contextmanager
def opened(settings: StoreSettings) -> Iterator[StoreClient]:
    """Serves a store with ``settings`` and yields a client of it."""
    with served(create_app(settings)) as url, StoreClient(base_url=url) as client:
        yield client
