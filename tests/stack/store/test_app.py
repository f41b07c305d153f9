"""The store through real HTTP: OTLP in, Tempo's API out."""

from __future__ import annotations

import base64
import gzip
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from connector import names
from stack.store.app import create_app
from stack.store.otlp import PROTOBUF as PROTOBUF_TYPE
from stack.store.settings import StoreSettings
from stack.store.testing import T0, SpanSpec, StoreClient, opened, request_of, served

PROTOBUF = {"Content-Type": PROTOBUF_TYPE}


def spans_of(traces: TracesData) -> list:
    return [s for r in traces.resource_spans for scope in r.scope_spans for s in scope.spans]


def fetch(client: StoreClient, trace: int) -> TracesData:
    answer = client.get(f"/api/traces/{trace:032x}", headers={"Accept": "application/protobuf"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/protobuf"
    return TracesData.FromString(answer.content)


@pytest.mark.parametrize("compression", list(Compression))
def test_the_sdks_exporter_delivers(client: StoreClient, compression: Compression) -> None:
    delivered = []

    class Exporter(OTLPSpanExporter):
        def export(self, spans):
            delivered.append(super().export(spans))
            return delivered[-1]

    exporter: SpanExporter = Exporter(endpoint=f"{client.base_url}/v1/traces", compression=compression)
    provider = TracerProvider(resource=Resource({"service.name": "svc"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("t").start_as_current_span("root", attributes={"n": 3, "l": ["a", "b"]}) as span:
        span.add_event("first_token", {"x": 1.5})
    provider.shutdown()
    assert delivered == [SpanExportResult.SUCCESS]
    stored = spans_of(fetch(client, span.get_span_context().trace_id))
    assert [s.name for s in stored] == ["root"]
    assert [e.name for e in stored[0].events] == ["first_token"]
    assert client.found('{ .l = "b" && .n = 3 && resource.service.name = "svc" }') == {span.get_span_context().trace_id}


def test_success_is_an_empty_export_response(client: StoreClient) -> None:
    answer = client.export(SpanSpec(1))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-protobuf"
    assert ExportTraceServiceResponse.FromString(answer.content) == ExportTraceServiceResponse()


def test_gzip_and_json_store_the_same_as_protobuf(client: StoreClient) -> None:
    request = request_of(SpanSpec(0xAB1, span_id=b"\x01" * 8))
    zipped = gzip.compress(request.SerializeToString())
    assert client.post("/v1/traces", content=zipped, headers=PROTOBUF | {"Content-Encoding": "gzip"}).status_code == 200
    document = MessageToDict(request)
    span = document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    span |= {"traceId": f"{0xAB2:032x}", "spanId": "01" * 8, "unknownField": 1}
    answer = client.post("/v1/traces", json=document)
    assert (answer.status_code, answer.json()) == (200, {})
    first, second = (spans_of(fetch(client, trace))[0] for trace in (0xAB1, 0xAB2))
    second.trace_id = first.trace_id
    assert first == second


def test_trace_json_is_tempos(client: StoreClient) -> None:
    request = request_of(SpanSpec(0xFE, name="a", status=2, kind=2), SpanSpec(0xFE, name="b", parent=b"\x02" * 8))
    client.send_request(request)
    v1 = client.get(f"/api/traces/{0xFE:x}").json()
    assert list(v1) == ["batches"]
    span = v1["batches"][0]["scopeSpans"][0]["spans"][0]
    assert span["traceId"] == base64.b64encode((0xFE).to_bytes(16, "big")).decode()
    assert (span["kind"], span["status"]["code"]) == ("SPAN_KIND_SERVER", "STATUS_CODE_ERROR")
    assert span["startTimeUnixNano"] == str(T0)
    v2 = client.get(f"/api/v2/traces/{0xFE:032x}").json()
    assert v2["trace"]["resourceSpans"] == v1["batches"]
    assert ParseDict(v2["trace"], ExportTraceServiceRequest()) == request
    raw = client.get(f"/api/v2/traces/{0xFE:x}", headers={"Accept": "application/protobuf"}).content
    assert raw.endswith(fetch(client, 0xFE).SerializeToString())
    assert raw[0] == 0x0A


@pytest.mark.parametrize("path", ["/api/traces", "/api/v2/traces"])
def test_unknown_and_bad_trace_ids(client: StoreClient, path: str) -> None:
    assert client.get(f"{path}/{7:032x}").status_code == 404
    for bad in ("xyz", "1" * 33):
        answer = client.get(f"{path}/{bad}")
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_retried_request_is_read_once(client: StoreClient) -> None:
    request = request_of(SpanSpec(5, name="a"), SpanSpec(5, name="b", parent=b"\x09" * 8))
    for _ in range(3):
        assert client.send_request(request).status_code == 200
    client.export(SpanSpec(5, name="c", parent=b"\x09" * 8))
    assert [span.name for span in spans_of(fetch(client, 5))] == ["a", "b", "c"]
    assert len(fetch(client, 5).resource_spans) == 3
    assert client.search("{ }")[0]["spanSets"][0]["matched"] == 3


def test_malformed_bodies(client: StoreClient) -> None:
    valid = request_of(SpanSpec(1)).SerializeToString()
    zipped = PROTOBUF | {"Content-Encoding": "gzip"}
    cases = [
        (b"\xff\xff\xff", PROTOBUF),
        (valid[:-5], PROTOBUF),
        (valid, zipped),
        (gzip.compress(valid)[:-9], zipped),
        (b"{", {"Content-Type": "application/json"}),
        (b"[]", {"Content-Type": "application/json"}),
        (
            b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "zz"}]}]}]}',
            {"Content-Type": "application/json"},
        ),
    ]
    for body, headers in cases:
        answer = client.post("/v1/traces", content=body, headers=headers)
        assert answer.status_code == 400, body
        if headers["Content-Type"] != "application/json":
            assert Status.FromString(answer.content).message
    assert client.metric("kvpath_store_requests_refused_total", '{reason="malformed"}') == len(cases)
    assert client.found("{}") == set()


def test_wrong_types(client: StoreClient) -> None:
    for headers in ({"Content-Type": "text/plain"}, {}, PROTOBUF | {"Content-Encoding": "br"}):
        assert client.post("/v1/traces", content=b"x", headers=headers).status_code == 415


def test_oversize_bodies_plain_and_inflated(client: StoreClient) -> None:
    bomb = gzip.compress(b"\0" * (2 * 1024 * 1024))
    assert len(bomb) < 10_000
    assert client.post("/v1/traces", content=b"\0" * (1024 * 1024 + 1), headers=PROTOBUF).status_code == 413
    assert client.post("/v1/traces", content=bomb, headers=PROTOBUF | {"Content-Encoding": "gzip"}).status_code == 413


def test_bad_spans_are_rejected_and_the_rest_stored(client: StoreClient) -> None:
    request = request_of(SpanSpec(1), SpanSpec(0), SpanSpec(2), SpanSpec(3))
    spans = [r.scope_spans[0].spans[0] for r in request.resource_spans]
    spans[2].span_id = b"short"
    spans[3].start_time_unix_nano = 2**64 - 1
    response = ExportTraceServiceResponse.FromString(client.send_request(request).content)
    assert response.partial_success.rejected_spans == 3
    assert response.partial_success.error_message
    assert client.found("{}") == {1}
    counts = [client.metric(f"kvpath_store_spans_{what}_total") for what in ("received", "stored", "rejected")]
    assert counts == [4, 1, 3]


def test_everything_accepted_survives_a_restart(settings: StoreSettings) -> None:
    for trace in (1, 2):
        with opened(settings) as client:
            assert client.export(SpanSpec(trace, name=f"n{trace}")).status_code == 200
    with opened(settings) as client:
        assert client.found("{}") == {1, 2}
        assert client.found('{ name = "n1" }') == {1}


def test_readers_during_writes_see_whole_traces(client: StoreClient) -> None:
    done = threading.Event()

    def write(first: int) -> None:
        with StoreClient(base_url=client.base_url) as own:
            for trace in range(first, first + 40):
                children = [SpanSpec(trace, name="child", parent=b"\x01" * 8) for _ in range(4)]
                assert own.export(SpanSpec(trace, name="root"), *children).status_code == 200

    def read() -> int:
        answers = 0
        with StoreClient(base_url=client.base_url) as own:
            while not done.is_set() or not answers:
                for trace in own.search('{ name = "child" }'):
                    assert trace["spanSets"][0]["matched"] == 4
                    assert trace["rootTraceName"] == "root"
                answers += 1
        return answers

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for writing in [pool.submit(write, first) for first in (100, 200)]:
            writing.result()
        done.set()
        assert all(reader.result() > 0 for reader in readers)
    assert len(client.found("{}")) == 80


def test_status_endpoints(client: StoreClient) -> None:
    assert client.get("/api/echo").text == "echo"
    assert client.get("/ready").status_code == 200
    client.export(SpanSpec(1))
    assert client.metric("kvpath_store_database_bytes") > 0
    assert client.metric("kvpath_store_queue_bytes") == 0


def test_tags_and_values(client: StoreClient) -> None:
    attributes = {names.ATTR_MODE: names.MODE_PUSH, "n": 3, "ok": True}
    client.export(SpanSpec(1, attributes=attributes), SpanSpec(1, name="x", parent=b"\x01" * 8, service="other"))
    assert {names.ATTR_MODE, "n", "service.name"} <= set(client.get("/api/search/tags").json()["tagNames"])
    scopes = client.get("/api/v2/search/tags", params={"scope": "resource"}).json()["scopes"]
    assert scopes == [{"name": "resource", "tags": ["service.name"]}]
    assert client.get("/api/v2/search/tags", params={"scope": "event"}).status_code == 400

    def values(tag: str) -> list[str]:
        return client.get(f"/api/search/tag/{tag}/values").json()["tagValues"]

    assert values("service.name") == ["kvpath-router", "other"]
    assert values(f"span.{names.ATTR_MODE}") == [names.MODE_PUSH]
    assert values("name") == ["chat", "x"]
    assert values("status") == ["unset", "ok", "error"]
    assert values("absent") == []
    v2 = client.get("/api/v2/search/tag/.n/values").json()["tagValues"]
    assert v2 == [{"type": "int", "value": "3"}]
    assert values("ok") == ["true"]


def test_a_full_queue_answers_503_with_retry_after(settings: StoreSettings) -> None:
    app = create_app(settings)
    with served(app) as url, StoreClient(base_url=url) as client:
        app.state.writer.reserve(settings.queue_bytes)
        answer = client.export(SpanSpec(1))
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        app.state.writer.release(settings.queue_bytes)
        assert client.export(SpanSpec(1)).status_code == 200
        assert client.metric("kvpath_store_requests_refused_total", '{reason="queue_full"}') == 1


def test_keep_alive_survives_a_refusal(client: StoreClient) -> None:
    with httpx.Client(base_url=client.base_url, limits=httpx.Limits(max_connections=1)) as one:
        assert one.post("/v1/traces", content=b"x", headers=PROTOBUF).status_code == 400
        assert one.get("/ready").status_code == 200
