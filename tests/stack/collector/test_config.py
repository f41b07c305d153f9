"""The deployed configuration of the OpenTelemetry Collector, under a Collector with core components only."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, set_span_in_context

from connector import names
from connector.bootstrap import start_telemetry, traces_url
from stack.analysis.source import TraceSource
from stack.engines.processes import Deployment, Part
from stack.engines.readiness import Awaited, wait_until_healthy
from stack.store.settings import StoreSettings
from stack.store.testing import opened

CONFIG = Path(__file__).parents[3] / "stack" / "collector" / "config.yaml"
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
        ("otlp/tempo:", "kafka/tempo:", "kafka"),
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


def on_loopback(config: Path, http_port: int, grpc_port: int, metrics_port: int) -> str:
    """The deployed configuration, listening on loopback at ports of the test's own."""
    text = config.read_text()
    for port, other in ((4318, http_port), (4317, grpc_port)):
        assert text.count(f"endpoint: 0.0.0.0:{port}") == 1
        text = text.replace(f"endpoint: 0.0.0.0:{port}", f"endpoint: 127.0.0.1:{other}")
    settings = yaml.safe_load(text)
    exporter = settings["service"]["telemetry"]["metrics"]["readers"][0]["pull"]["exporter"]["prometheus"]
    assert exporter == {"host": "0.0.0.0", "port": 8888}
    exporter.update(host="127.0.0.1", port=metrics_port)
    return yaml.safe_dump(settings)


def stand_in_for_tempo(grpc_port: int, metrics_port: int, store_url: str) -> str:
    """OTLP over gRPC in, as Tempo takes it; out to the embedded store, which speaks HTTP only."""
    reader = {"pull": {"exporter": {"prometheus": {"host": "127.0.0.1", "port": metrics_port}}}}
    return yaml.safe_dump(
        {
            "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{grpc_port}"}}}},
            "exporters": {"otlphttp": {"endpoint": store_url}},
            "service": {
                "telemetry": {"metrics": {"readers": [reader]}},
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlphttp"]}},
            },
        }
    )


def test_a_trace_goes_through_unchanged(tool: Tool, tmp_path: Path) -> None:
    http, grpc, metrics, tempo, tempo_metrics = free_ports(5)
    direct = StoreSettings(path=tmp_path / "direct.db")
    behind = StoreSettings(path=tmp_path / "behind.db")
    (tmp_path / "config.yaml").write_text(on_loopback(CONFIG, http, grpc, metrics))
    with opened(direct) as expected, opened(behind) as received:
        (tmp_path / "tempo.yaml").write_text(stand_in_for_tempo(tempo, tempo_metrics, str(received.base_url)))

        def collector(name: str, env: dict[str, str] | None = None) -> Part:
            argv = (str(tool("otelcol")), "--config", str(tmp_path / f"{name}.yaml"))
            return Part(name, argv, tmp_path / f"{name}.log", env or {})

        with Deployment() as deployment:
            deployment.start(collector("tempo"))
            (config,) = deployment.start(collector("config", {"KVPATH_TEMPO_ENDPOINT": f"127.0.0.1:{tempo}"}))
            wait_until_healthy(deployment, [Awaited(config, f"http://127.0.0.1:{metrics}/metrics")], 20.0, print)
            trace_id = send_a_trace(Both(str(expected.base_url), f"http://127.0.0.1:{http}"))
            page = httpx.get(f"http://127.0.0.1:{metrics}/metrics").text
        # Stopped in this order, each has handed on what it had.
        with TraceSource(str(expected.base_url)) as one, TraceSource(str(received.base_url)) as other:
            sent, arrived = one.fetch(trace_id), other.fetch(trace_id)
    assert sent is not None, "the store did not take the trace at all"
    assert arrived is not None, (tmp_path / "config.log").read_text() + (tmp_path / "tempo.log").read_text()
    assert len(sent.spans) == 3
    assert sorted(arrived.spans, key=lambda span: span.span_id) == sorted(sent.spans, key=lambda span: span.span_id)
    assert "otelcol_receiver_accepted_spans" in page
