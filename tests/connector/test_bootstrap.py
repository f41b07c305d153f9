"""Counts are exact and shutdown is bounded, whatever the collector does."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from connector import names
from connector.bootstrap import SpanCounts, SystemIds, Telemetry, start_telemetry, traces_url

SHUTDOWN_LIMIT_S = 5.0


class ScriptedExporter(SpanExporter):
    """Exports by a function; ``entered`` is set when a batch is being exported, ``go`` lets a slow one end."""

    def __init__(self, answer: Callable[[], SpanExportResult], *, blocked: bool = False) -> None:
        self.answer = answer
        self.entered, self.go = threading.Event(), threading.Event()
        if not blocked:
            self.go.set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.go.wait(30)
        return self.answer()


def broken() -> SpanExportResult:
    raise ConnectionResetError("collector went away")


def end_spans(telemetry: Telemetry, count: int) -> None:
    for _ in range(count):
        telemetry.tracer.start_span("work").end()


def exact(counts: SpanCounts) -> bool:
    total = counts.exported + counts.dropped + counts.failed + counts.pending
    return counts.ended == total and counts.pending >= 0 and min(counts.dropped, counts.failed) >= 0


def timed_shutdown(telemetry: Telemetry, timeout_s: float | None = None) -> SpanCounts:
    start = time.monotonic()
    counts = telemetry.shutdown() if timeout_s is None else telemetry.shutdown(timeout_s)
    assert time.monotonic() - start < SHUTDOWN_LIMIT_S
    assert exact(counts)
    return counts


@contextmanager
def collector(status: int | None) -> Iterator[str]:
    """A real HTTP server: answers every export with ``status``, or with ``None`` never."""
    hang = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if status is None:
                hang.wait(30)
                return
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        hang.set()
        server.shutdown()
        server.server_close()
        thread.join()


def test_all_is_exported() -> None:
    exporter = InMemorySpanExporter()
    telemetry = start_telemetry("svc", None, exporter=exporter)
    end_spans(telemetry, 30)
    assert telemetry.flush()
    assert telemetry.counts() == SpanCounts(ended=30, exported=30)
    assert len(exporter.get_finished_spans()) == 30
    assert timed_shutdown(telemetry) == SpanCounts(ended=30, exported=30)


@pytest.mark.parametrize("answer", [lambda: SpanExportResult.FAILURE, broken], ids=["fails", "raises"])
def test_what_is_not_delivered_is_failed(answer: Callable[[], SpanExportResult]) -> None:
    telemetry = start_telemetry("svc", None, exporter=ScriptedExporter(answer))
    end_spans(telemetry, 30)
    telemetry.flush()
    assert telemetry.counts() == SpanCounts(ended=30, failed=30)
    assert timed_shutdown(telemetry).lost == 30


def test_a_full_queue_drops_and_counts() -> None:
    exporter = ScriptedExporter(lambda: SpanExportResult.SUCCESS, blocked=True)
    telemetry = start_telemetry("svc", None, exporter=exporter, queue_size=8)
    end_spans(telemetry, 8)  # a whole batch: the processor's thread takes it and is stuck in the exporter
    assert exporter.entered.wait(5)
    end_spans(telemetry, 20)
    assert telemetry.counts() == SpanCounts(ended=28, dropped=12)
    assert telemetry.counts().pending == 16
    exporter.go.set()
    telemetry.flush()
    assert telemetry.counts() == SpanCounts(ended=28, exported=16, dropped=12)
    assert timed_shutdown(telemetry).lost == 12


def test_counts_are_exact_while_a_slow_exporter_runs_and_threads_end_spans() -> None:
    exporter = ScriptedExporter(lambda: SpanExportResult.SUCCESS)
    telemetry = start_telemetry("svc", None, exporter=exporter, queue_size=64)
    threads = [threading.Thread(target=end_spans, args=(telemetry, 400)) for _ in range(4)]
    for thread in threads:
        thread.start()
    seen = [telemetry.counts() for _ in range(200)]
    for thread in threads:
        thread.join()
    telemetry.flush()
    assert all(exact(counts) for counts in seen)
    counts = telemetry.counts()
    assert (counts.ended, counts.pending) == (1_600, 0)
    timed_shutdown(telemetry)


def test_shutdown_gives_up_on_an_exporter_that_never_answers_and_a_late_answer_changes_nothing() -> None:
    exporter = ScriptedExporter(lambda: SpanExportResult.SUCCESS, blocked=True)
    telemetry = start_telemetry("svc", None, exporter=exporter)
    end_spans(telemetry, 5)
    start = time.monotonic()
    final = telemetry.shutdown(timeout_s=0.2)
    assert time.monotonic() - start < 2
    assert final == SpanCounts(ended=5, failed=5)
    before = threading.active_count()
    exporter.go.set()
    while threading.active_count() >= before and before > 1 and time.monotonic() - start < 5:
        telemetry.flush(0.01)
    assert telemetry.counts() == final


def test_a_span_that_ends_after_shutdown_is_lost_not_pending() -> None:
    telemetry = start_telemetry("svc", None, exporter=InMemorySpanExporter())
    telemetry.shutdown()
    end_spans(telemetry, 2)
    assert telemetry.counts() == SpanCounts(ended=2, dropped=2)


def test_an_unreachable_endpoint_loses_all_and_says_so() -> None:
    with socket.socket() as reserved:  # bound and not listening: a connection is refused
        reserved.bind(("127.0.0.1", 0))
        telemetry = start_telemetry("svc", f"http://127.0.0.1:{reserved.getsockname()[1]}")
        end_spans(telemetry, 7)
        assert timed_shutdown(telemetry, 0.3) == SpanCounts(ended=7, failed=7)


@pytest.mark.parametrize(("status", "timeout_s"), [(500, 0.3), (503, 0.3), (None, None)], ids=["500", "503", "never"])
def test_a_collector_that_does_not_take_spans(status: int | None, timeout_s: float | None) -> None:
    with collector(status) as endpoint:
        telemetry = start_telemetry("svc", endpoint)
        end_spans(telemetry, 7)
        assert timed_shutdown(telemetry, timeout_s) == SpanCounts(ended=7, failed=7)


def test_a_collector_that_takes_spans() -> None:
    with collector(200) as endpoint:
        telemetry = start_telemetry("svc", endpoint)
        end_spans(telemetry, 7)
        assert timed_shutdown(telemetry) == SpanCounts(ended=7, exported=7)


def test_without_endpoint_everything_is_a_no_op() -> None:
    telemetry = start_telemetry("svc", None)
    end_spans(telemetry, 3)
    assert telemetry.flush()
    assert telemetry.shutdown() == SpanCounts()


def test_an_unsampled_span_counts_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    telemetry = start_telemetry("svc", None, exporter=InMemorySpanExporter())
    end_spans(telemetry, 3)
    assert timed_shutdown(telemetry) == SpanCounts()


def test_the_resource_says_whose_spans_these_are() -> None:
    exporter = InMemorySpanExporter()
    telemetry = start_telemetry(
        names.SERVICE_PREFILL, None, instance_id="prefill-0", attributes={"x": 1}, exporter=exporter
    )
    end_spans(telemetry, 1)
    telemetry.shutdown()
    (span,) = exporter.get_finished_spans()
    attributes = span.resource.attributes
    assert attributes["service.name"] == names.SERVICE_PREFILL
    assert attributes["service.instance.id"] == "prefill-0"
    assert isinstance(attributes["process.pid"], int)
    assert isinstance(attributes[names.ATTR_BOOT_ID], str)
    assert attributes["host.name"]
    assert attributes["x"] == 1


def test_completes_the_traces_url() -> None:
    assert traces_url("http://h:4318") == "http://h:4318/v1/traces"
    assert traces_url("http://h:4318/") == "http://h:4318/v1/traces"
    assert traces_url("https://h/v1/traces") == "https://h/v1/traces"
    with pytest.raises(ValueError, match="not an HTTP URL"):
        traces_url("h:4317")


def test_processes_that_seed_alike_still_give_different_ids():
    """vLLM seeds Python's global generator with the same number in P and D."""
    drawn = set()
    for _ in range(2):
        random.seed(0)
        ids = SystemIds()
        drawn |= {ids.generate_span_id(), ids.generate_span_id(), ids.generate_trace_id()}
    assert len(drawn) == 6
