"""The deployed configuration of the OpenTelemetry Collector, under a Collector with core components only."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, set_span_in_context
from prometheus_client.parser import text_string_to_metric_families

from connector import names
from connector.bootstrap import start_telemetry, traces_url
from dashboards import collector_metrics
from dashboards.metric import TARGET_LABELS, Metric
from stack.analysis.source import TraceSource
from stack.engines.processes import Deployment, Part
from stack.engines.readiness import Awaited, wait_until_healthy
from stack.store.settings import StoreSettings
from stack.store.testing import StoreClient, opened
from tests.stack.collector.deployed import CONFIG, on_loopback

Tool = Callable[[str], Path]


def validate(otelcol: Path, config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([otelcol, "validate", "--config", str(config)], capture_output=True, text=True)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def test_the_configuration_is_valid(tool: Tool) -> None:
    result = validate(tool("otelcol"), CONFIG)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("check_interval: 1s", "check_intervall: 1s", "check_intervall"),
        ("timeout: 1s", "timeout: soon", "timeout"),
        ("[memory_limiter, batch]", "[memory_limiter, bach]", "bach"),
        ("otlphttp/tempo:", "kafka/tempo:", "kafka"),
    ],
)
def test_a_mistake_is_found(tool: Tool, tmp_path: Path, right: str, wrong: str, complaint: str) -> None:
    text = CONFIG.read_text()
    assert right in text
    mutant = tmp_path / "config.yaml"
    mutant.write_text(text.replace(right, wrong, 1))
    result = validate(tool("otelcol"), mutant)
    assert result.returncode != 0
    assert complaint in result.stderr


class Both(SpanExporter):
    """Sends the same spans to two places."""

    def __init__(self, *endpoints: str) -> None:
        self._exporters = [OTLPSpanExporter(endpoint=traces_url(endpoint)) for endpoint in endpoints]

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        results = {exporter.export(spans) for exporter in self._exporters}
        return SpanExportResult.SUCCESS if results == {SpanExportResult.SUCCESS} else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        for exporter in self._exporters:
            exporter.shutdown()


def send_a_trace(exporter: SpanExporter) -> str:
    """Spans with all that ours have: links, events, failures, attributes of every type. Returns the trace id."""
    telemetry = start_telemetry(names.SERVICE_ROUTER, None, exporter=exporter, instance_id="router-0")
    tracer = telemetry.tracer
    root = tracer.start_span("chat model", kind=SpanKind.SERVER, attributes={names.ATTR_MODE: names.MODE_PUSH})
    inside = set_span_in_context(root)
    leg = tracer.start_span(names.SPAN_LEG_PREFILL, inside, SpanKind.CLIENT, {names.ATTR_CANDIDATES: ("a=0", "b=1")})
    write = tracer.start_span(
        names.SPAN_WRITE,
        set_span_in_context(leg),
        attributes={names.ATTR_BYTES: 2**40, names.ATTR_RATE: 0.1, names.ATTR_RANK: 0},
        links=[Link(leg.get_span_context(), {"kind": "registration"})],
    )
    write.set_attribute(names.ATTR_ERROR_TYPE, "timeout")
    write.set_status(Status(StatusCode.ERROR, "no completion"))
    write.end()
    leg.end()
    root.add_event(names.EVENT_FIRST_TOKEN, {names.ATTR_COMPLETION_COUNT: 1})
    root.end()
    counts = telemetry.shutdown()
    assert (counts.exported, counts.lost) == (3, 0)
    return f"{root.get_span_context().trace_id:032x}"


@dataclass
class Collector:
    """A running Collector with the deployed configuration."""

    otlp_url: str
    metrics_url: str

    def page(self) -> str:
        return httpx.get(self.metrics_url, trust_env=False).text

    def wait_for(self, sample: str) -> str:
        """Returns the page of metrics once a line begins with ``sample``."""
        deadline = time.monotonic() + 10.0
        while f"\n{sample}{{" not in (page := self.page()):
            assert time.monotonic() < deadline, page
            time.sleep(0.05)  # another process, which can only be polled
        return page


@contextmanager
def running(otelcol: Path, folder: Path, tempo_url: str) -> Iterator[Collector]:
    """When the block ends, the Collector is stopped and has handed on what it had."""
    http, grpc, metrics = free_ports(3)
    config = folder / "config.yaml"
    config.write_text(on_loopback(http, grpc, metrics))
    argv = (str(otelcol), "--config", str(config))
    part = Part("Collector", argv, folder / "otelcol.log", {"KVPATH_TEMPO_ENDPOINT": tempo_url})
    collector = Collector(f"http://127.0.0.1:{http}", f"http://127.0.0.1:{metrics}/metrics")
    with Deployment() as deployment:
        wait_until_healthy(deployment, [Awaited(*deployment.start(part), collector.metrics_url)], 20.0, print)
        yield collector


def base_url(store: StoreClient) -> str:
    return str(store.base_url).rstrip("/")


def as_exposed(page: str) -> dict[str, frozenset[str]]:
    """Labels of every sample on a page of metrics, by its name."""
    return {
        sample.name: frozenset(sample.labels)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def expected(*metrics: Metric) -> dict[str, frozenset[str]]:
    return {name: labels - TARGET_LABELS for metric in metrics for name, labels in metric.series().items()}


def test_a_trace_goes_through_unchanged(tool: Tool, tmp_path: Path) -> None:
    with (
        opened(StoreSettings(path=tmp_path / "direct.db")) as direct,
        opened(StoreSettings(path=tmp_path / "behind.db")) as behind,
    ):
        with running(tool("otelcol"), tmp_path, base_url(behind)) as collector:
            trace_id = send_a_trace(Both(base_url(direct), collector.otlp_url))
            page = collector.wait_for(collector_metrics.SENT.total)
        with TraceSource(base_url(direct)) as one, TraceSource(base_url(behind)) as other:
            sent, arrived = one.fetch(trace_id), other.fetch(trace_id)
    assert sent is not None, "the store did not take the trace at all"
    assert arrived is not None
    assert len(sent.spans) == 3
    assert sorted(arrived.spans, key=lambda span: span.span_id) == sorted(sent.spans, key=lambda span: span.span_id)
    of_failures = {collector_metrics.NOT_SENT.name}
    asked = expected(*(metric for metric in collector_metrics.METRICS if metric.name not in of_failures))
    assert asked.items() <= as_exposed(page).items()


def test_what_was_not_sent_is_counted_as_the_alert_asks(tool: Tool, tmp_path: Path) -> None:
    with opened(StoreSettings(path=tmp_path / "traces.db")) as store:
        nowhere = f"{base_url(store)}/nowhere"  # answers 404, which is no reason to try again
        with running(tool("otelcol"), tmp_path, nowhere) as collector:
            send_a_trace(Both(collector.otlp_url))
            page = collector.wait_for(collector_metrics.NOT_SENT.total)
    assert expected(collector_metrics.NOT_SENT).items() <= as_exposed(page).items()
