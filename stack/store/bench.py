"""Measures the store: spans per second in through real HTTP, and the time to search and fetch.

The store runs in this process; the sender is another one and sends batches that were encoded beforehand, of 512 spans
as the SDK's exporter sends them, over a few connections as several engine processes would.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from connector import names
from stack.store.app import create_app
from stack.store.otlp import PROTOBUF, SERVICE_NAME
from stack.store.settings import StoreSettings
from stack.store.testing import served

SPANS_PER_BATCH = 512
SPANS_PER_TRACE = 16
CONNECTIONS = 4
READS = 30


def make_batch(number: int, spans: int = SPANS_PER_BATCH) -> bytes:
    """Returns one encoded export request: ``spans`` spans with ten attributes, 16 to a trace."""
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource = {SERVICE_NAME: names.SERVICE_DECODE, "host.name": "bench", names.ATTR_BOOT_ID: "b" * 36}
    for key, text in resource.items():
        resource_spans.resource.attributes.add(key=key).value.string_value = text
    scope = resource_spans.scope_spans.add()
    for index in range(spans):
        _fill(scope.spans.add(), number * spans + index)
    return request.SerializeToString()


def _fill(span: Span, serial: int) -> None:
    trace, position = divmod(serial, SPANS_PER_TRACE)
    span.trace_id = (0xBE << 120 | trace).to_bytes(16, "big")
    span.span_id = (serial + 1).to_bytes(8, "big")
    if position:
        span.parent_span_id = (trace * SPANS_PER_TRACE + 1).to_bytes(8, "big")
    span.name = f"{names.SPAN_WRITE}.{position}"
    span.kind = Span.SPAN_KIND_INTERNAL
    span.start_time_unix_nano = 1_700_000_000_000_000_000 + serial * 1_000_000
    span.end_time_unix_nano = span.start_time_unix_nano + 40_000_000
    texts = {names.ATTR_MODE: (names.MODE_PUSH, names.MODE_PULL)[trace % 2], names.ATTR_REQUEST_ID: f"req-{trace}"}
    for key, text in {**texts, names.ATTR_ENGINE_ID: "d0", names.ATTR_OPERATION: names.OPERATION_WRITE}.items():
        span.attributes.add(key=key).value.string_value = text
    numbers = (names.ATTR_RANK, names.ATTR_BYTES, names.ATTR_DESCRIPTORS, names.ATTR_RUNS, names.ATTR_POLL_GAP)
    for key in numbers:
        span.attributes.add(key=key).value.int_value = serial
    span.attributes.add(key=names.ATTR_RATE).value.double_value = 4.9


def _send(address: str, batches: int, answer: Connection) -> None:
    """The sender process: encodes, sends over CONNECTIONS connections, answers with seconds and slowest export."""
    bodies = [make_batch(number) for number in range(batches)]

    def send(share: list[bytes]) -> list[float]:
        took = []
        with closing(http.client.HTTPConnection(address)) as connection:
            for body in share:
                begun = time.perf_counter()
                connection.request("POST", "/v1/traces", body, {"Content-Type": PROTOBUF})
                response = connection.getresponse()
                response.read()
                if response.status != 200:
                    raise RuntimeError(f"the store answered {response.status}")
                took.append(time.perf_counter() - begun)
        return took

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        begun = time.perf_counter()
        took = [
            second for share in pool.map(send, [bodies[i::CONNECTIONS] for i in range(CONNECTIONS)]) for second in share
        ]
        answer.send((time.perf_counter() - begun, statistics.median(took), max(took)))


def _median_ms(call: Callable[[int], bytes]) -> float:
    took = []
    for index in range(READS):
        begun = time.perf_counter()
        call(index)
        took.append(time.perf_counter() - begun)
    return round(statistics.median(took) * 1e3, 2)


def run_bench(batches: int = 80) -> dict[str, Any]:
    """Returns spans per second into the store and medians of export, search and fetch in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        settings = StoreSettings(path=Path(folder) / "bench.db")
        with served(create_app(settings)) as url:
            return _measure(urlsplit(url).netloc, batches) | {"database_bytes_per_span": _per_span(settings, batches)}


def _per_span(settings: StoreSettings, batches: int) -> int:
    return settings.path.stat().st_size // (batches * SPANS_PER_BATCH)


def _measure(address: str, batches: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    sender = context.Process(target=_send, args=(address, batches, sending))
    sender.start()
    sending.close()  # so that a sender that dies is an EOFError here, not a wait without end
    seconds, median, slowest = receiving.recv()
    sender.join()
    inflow = {
        "spans": batches * SPANS_PER_BATCH,
        "spans_per_second": round(batches * SPANS_PER_BATCH / seconds),
        "export_ms_p50": round(median * 1e3, 1),
        "export_ms_max": round(slowest * 1e3, 1),
    }
    with closing(http.client.HTTPConnection(address)) as connection:
        return inflow | _reads(connection, batches * SPANS_PER_BATCH // SPANS_PER_TRACE)


def _reads(connection: http.client.HTTPConnection, traces: int) -> dict[str, float]:

    def get(path: str) -> bytes:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path} answered {response.status}: {body[:200]!r}")
        return body

    def find(query: str) -> float:
        return _median_ms(lambda index: get("/api/search?" + urlencode({"q": query.format(index)})))

    return {
        "search_request_id_ms_p50": find(f'{{{{ .{names.ATTR_REQUEST_ID} = "req-{{}}" }}}}'),
        "search_mode_ms_p50": find(f'{{{{ .{names.ATTR_MODE} = "{names.MODE_PUSH}" && duration > 1ms }}}}'),
        "search_unindexed_ms_p50": find(f"{{{{ .{names.ATTR_BYTES} = {{}} }}}}"),
        "fetch_ms_p50": _median_ms(lambda index: get(f"/api/traces/{0xBE << 120 | index % traces:032x}")),
    }


if __name__ == "__main__":
    print(json.dumps(run_bench(), indent=2))
