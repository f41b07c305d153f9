"""The reader of Tempo's API, against a real HTTP server that answers as Tempo documents it."""

from __future__ import annotations

import json
import socket
from urllib.parse import parse_qs, urlsplit

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stack.analysis.otlp_json import document, dumps
from stack.analysis.source import ROUTER_QUERY, SourceError, TraceSource
from stack.analysis.synthetic import pull_trace, push_trace
from stack.store.otlp_json import ids_from_hex
from stack.store.settings import StoreSettings
from stack.store.testing import opened


def hit(trace_id: str, start: int) -> dict:
    return {
        "traceID": trace_id.lstrip("0"),  # as Tempo writes them
        "rootServiceName": "kvpath-router",
        "rootTraceName": "chat smollm2",
        "startTimeUnixNano": str(start),
        "durationMs": 557,
        "spanSets": [{"spans": [{"spanID": "563d623c76514f8e"}], "matched": 1}],
    }


def test_traces_come_newest_first(store):
    traces = [push_trace(number=1), pull_trace(number=2)]
    hits = [hit(t.trace_id, start) for t, start in zip(traces, (100, 200), strict=True)]
    store.answer("/api/search", {"traces": hits, "metrics": {"inspectedBytes": "1"}})
    for trace in traces:
        store.answer(f"/api/traces/{trace.trace_id}", {"batches": document([trace])["resourceSpans"]})
    with TraceSource(store.url + "/") as source:
        assert list(source.traces(since_s=60, limit=7)) == [traces[1], traces[0]]
    asked = parse_qs(urlsplit(store.requests[0]).query)
    assert (asked["q"], asked["limit"]) == ([ROUTER_QUERY], ["7"])
    assert int(asked["end"][0]) - int(asked["start"][0]) in (61, 62)


def test_a_store_may_answer_with_more_than_the_limit(store):
    store.answer("/api/search", {"traces": [hit(f"{n:032x}", n) for n in (1, 2, 3)]})
    with TraceSource(store.url) as source:
        assert source.search(limit=2) == [f"{3:032x}", f"{2:032x}"]


def test_a_trace_that_is_gone_is_left_out(store):
    store.answer("/api/search", {"traces": [hit("a" * 32, 1)]})
    with TraceSource(store.url) as source:
        assert list(source.traces()) == []
        assert source.fetch("b" * 32) is None


def test_an_empty_store_has_no_traces(store):
    store.answer("/api/search", {"metrics": {}})
    with TraceSource(store.url) as source:
        assert source.search() == []


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("too many\nrequests", 429, "answered 429: too many requests"),
        ("<html>", 200, "did not answer with JSON"),
        ("[]", 200, "not answer in the form of Tempo's API"),
        ('{"traces": [{}]}', 200, "not answer in the form of Tempo's API"),
    ],
)
def test_a_wrong_answer_is_one_clear_line(store, body, status, says):
    store.answer("/api/search", body, status)
    with TraceSource(store.url) as source, pytest.raises(SourceError, match=says) as caught:
        source.search()
    assert "\n" not in str(caught.value)


def test_a_malformed_trace_is_one_clear_line(store):
    store.answer("/api/traces/" + "a" * 32, {"data": []})
    with TraceSource(store.url) as source, pytest.raises(SourceError, match="resourceSpans"):
        source.fetch("a" * 32)


def test_no_store_is_one_clear_line():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with TraceSource(url) as source, pytest.raises(SourceError, match=r"cannot reach the trace store.*--url"):
            source.search()


def test_a_store_that_never_answers_is_one_clear_line():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with TraceSource(url, timeout_s=0.05) as source, pytest.raises(SourceError, match="did not answer in time"):
            source.search()


@pytest.mark.parametrize("url", ["", "localhost:4318", "ftp://x", "http://"])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(SourceError, match="http"):
        TraceSource(url)


@pytest.mark.parametrize("media_type", ["application/json", "application/x-protobuf"])
def test_the_embedded_store_gives_back_what_was_exported(tmp_path, media_type):
    traces = [push_trace(number=0x1D, ranks=2), pull_trace(number=0x2E)]
    with opened(StoreSettings(path=tmp_path / "traces.db")) as client:
        body = dumps(traces)
        if media_type != "application/json":
            raw = ids_from_hex(json.loads(body))
            body = json_format.ParseDict(raw, ExportTraceServiceRequest()).SerializeToString()
        answer = client.post("/v1/traces", content=body, headers={"Content-Type": media_type})
        assert answer.status_code == 200, answer.text
        with TraceSource(str(client.base_url)) as source:
            found = {t.trace_id: t for t in source.traces(since_s=10 * 365 * 86400)}
            assert source.fetch("f" * 32) is None
    for trace in traces:
        by_id = {s.span_id: s for s in found[trace.trace_id].spans}
        assert by_id == {s.span_id: s for s in trace.spans}
