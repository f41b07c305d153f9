"""Telemetry that fails, part by part, and requests that do not notice."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracer

from connector import names
from connector.bootstrap import start_telemetry
from stack.router.spans import Spans, TelemetryErrors


class BrokenTracer:
    def start_span(self, *_args, **_kwargs):
        raise RuntimeError("broken tracer")


class BrokenSpan:
    """Fails in everything but what it is told to let through."""

    def __init__(self, span, broken):
        self._span = span
        self._broken = broken

    def __getattr__(self, name):
        if name == self._broken:
            raise RuntimeError(f"broken {name}")
        return getattr(self._span, name)


class HalfBrokenTracer:
    def __init__(self, broken):
        self._tracer = TracerProvider(shutdown_on_exit=False).get_tracer("t")
        self._broken = broken

    def start_span(self, *args, **kwargs):
        return BrokenSpan(self._tracer.start_span(*args, **kwargs), self._broken)


PARTS = ["start_span", "set_attribute", "set_status", "add_event", "end", "get_span_context"]


@pytest.mark.parametrize("part", PARTS)
async def test_a_broken_tracer_changes_no_answer_and_is_counted(start, prefill, decode, part, mode):
    telemetry = start_telemetry(names.SERVICE_ROUTER, None)
    telemetry.tracer = BrokenTracer() if part == "start_span" else HalfBrokenTracer(part)
    async with start(prefill, decode, telemetry=telemetry) as router:
        for stream in (True, False):
            assert (await router.complete(mode, stream=stream)).status_code == 200
        bad = await router.client.post("/v1/completions", content=b"{", headers=mode)
        assert bad.status_code == 400
        assert await router.metric("kvpath_router_telemetry_errors_total") >= 1
        assert router.idle


async def test_broken_metrics_change_no_answer_and_are_counted(router, mode):
    class Broken:
        def labels(self, *_args):
            raise RuntimeError("broken metric")

    metrics = router.app.generation._metrics
    metrics._ttft = metrics._duration = metrics._chosen = Broken()
    assert (await router.complete(mode)).status_code == 200
    assert await router.metric("kvpath_router_telemetry_errors_total") >= 3


async def test_without_tracing_there_is_no_traceparent(start, prefill, decode, mode):
    async with start(prefill, decode, telemetry=start_telemetry(names.SERVICE_ROUTER, None)) as router:
        response = await router.complete(mode)
    assert response.status_code == 200
    assert names.HEADER_TRACE_ID not in response.headers
    for request in prefill.requests + decode.requests:
        assert "traceparent" not in request.headers
        assert "traceparent" not in request.body["kv_transfer_params"]


async def test_lost_spans_are_counted_on_metrics(router, mode):
    await router.complete(mode)
    ended = len(await router.spans())
    assert await router.metric('kvpath_router_telemetry_spans_total{outcome="ended"}') == ended
    assert await router.metric('kvpath_router_telemetry_spans_total{outcome="exported"}') == ended
    assert await router.metric('kvpath_router_telemetry_spans_total{outcome="dropped"}') == 0


def test_a_span_ends_once_and_a_tracer_that_does_nothing_is_fine():
    spans = Spans(NoOpTracer(), TelemetryErrors())
    span = spans.server("s", {}, {}, 1)
    span.end()
    span.end()
    assert span.carrier() == {}
    assert span.trace_id() is None
    assert spans.errors.count == 0
