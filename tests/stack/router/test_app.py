"""The endpoints beside generation, and the health that stands behind ``/ready``."""

from __future__ import annotations

import asyncio

import pytest

from connector import names
from stack.router.bodies import CHAT_PATH, COMPLETIONS_PATH
from stack.router.settings import DECODE
from stack.router.stub_engine import StubEngine


async def test_ready_and_models(router):
    ready = await router.client.get("/ready")
    assert ready.status_code == 200
    assert set(ready.json()["modes"]) == {names.MODE_PUSH, names.MODE_PULL, names.MODE_PLAIN}
    models = await router.client.get("/v1/models")
    assert models.json()["data"] == [{"id": "D0"}]


async def test_an_engine_that_calls_itself_unhealthy_is_taken_out_and_comes_back(router, prefill):
    prefill.health_status = 503
    async with asyncio.timeout(5):
        while (answer := await router.client.get("/ready")).status_code != 503:
            pass
    assert "/health answered 503" in str(answer.json()["reasons"])
    assert (await router.complete({names.HEADER_MODE: names.MODE_PUSH})).status_code == 503
    assert (await router.complete({names.HEADER_MODE: names.MODE_PLAIN})).status_code == 200
    assert await router.metric('kvpath_router_engine_healthy{engine_id="P0",role="prefill"}') == 0
    assert await router.metric('kvpath_router_engine_healthy{engine_id="D0",role="decode"}') == 1
    prefill.health_status = 200
    async with asyncio.timeout(5):
        while (await router.client.get("/ready")).status_code != 200:
            pass


async def test_the_router_starts_without_engines_and_finds_them(start, prefill):
    late = StubEngine(DECODE, "D0")
    await late.start()
    await late.stop()
    async with start(prefill, late) as router:
        assert (await router.client.get("/health")).status_code == 200
        assert (await router.client.get("/ready")).status_code == 503
        assert (await router.complete()).status_code == 503
        await late.start()
        async with asyncio.timeout(5):
            while (await router.client.get("/ready")).status_code != 200:
                pass
        assert (await router.complete()).status_code == 200
    await late.stop()


async def test_errors_have_the_openai_shape(router):
    for response in (
        await router.client.get("/nowhere"),
        await router.client.get("/v1/completions"),
        await router.client.post("/v1/completions", content=b""),
    ):
        assert response.status_code in (400, 404, 405)
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", [COMPLETIONS_PATH, CHAT_PATH])
async def test_a_generation_endpoint_says_which_method_it_takes(router, path):
    response = await router.client.get(path)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_an_answer_in_one_piece_has_a_duration_and_no_first_token(router, mode):
    name = mode[names.HEADER_MODE]
    await router.complete(mode, max_tokens=8)
    await router.spans()
    page = (await router.client.get("/metrics")).text
    assert f'kvpath_router_request_duration_seconds_count{{mode="{name}"}} 1' in page
    for of_streams in ("time_to_first_token", "time_per_output_token"):
        assert f"kvpath_router_{of_streams}_seconds_count{{" not in page


async def test_series_whose_labels_are_known_begin_at_zero(router):
    page = (await router.client.get("/metrics")).text
    for outcome in names.REUSE_OUTCOMES:
        assert f'kvpath_router_reuse_lookups_total{{outcome="{outcome}"}} 0.0' in page
    assert 'kvpath_router_annotations_total{outcome="failed"} 0.0' in page


async def test_metrics_follow_requests(router, mode):
    name = mode[names.HEADER_MODE]
    await router.complete(mode, stream=True, max_tokens=8)
    await router.spans()
    expected = {
        f'kvpath_router_requests_total{{mode="{name}",status="200"}}': 1,
        f'kvpath_router_time_to_first_token_seconds_count{{mode="{name}"}}': 1,
        f'kvpath_router_request_duration_seconds_count{{mode="{name}"}}': 1,
        f'kvpath_router_time_per_output_token_seconds_count{{mode="{name}"}}': 1,
        f'kvpath_router_engine_chosen_total{{engine_id="P0",mode="{name}",role="prefill"}}': 1,
        'kvpath_router_engine_outstanding_requests{engine_id="D0",role="decode"}': 0,
        "kvpath_router_requests_in_flight": 0,
        "kvpath_router_telemetry_errors_total": 0,
    }
    for sample, value in expected.items():
        assert await router.metric(sample) == value, sample


async def test_a_measurements_own_request_is_in_no_latency(router, prefill, decode, consistent, mode):
    name, own = mode[names.HEADER_MODE], {names.HEADER_UNCOUNTED: names.UNCOUNTED_WARM_UP}
    response = await router.complete({**mode, **own}, stream=True, max_tokens=8)
    assert response.status_code == 200
    server = consistent(await router.spans())
    assert server.attributes[names.ATTR_UNCOUNTED] == names.UNCOUNTED_WARM_UP
    assert [event.name for event in server.events] == [names.EVENT_FIRST_TOKEN]
    assert await router.metric(f'kvpath_router_requests_total{{mode="{name}",status="200"}}') == 1
    page = (await router.client.get("/metrics")).text
    for latency in ("time_to_first_token", "request_duration", "time_per_output_token"):
        assert f'kvpath_router_{latency}_seconds_count{{mode="{name}"}}' not in page
    for request in prefill.requests + decode.requests:
        assert names.HEADER_UNCOUNTED not in {header.lower() for header in request.headers}


async def test_what_a_client_may_not_say_is_ignored(start, prefill, decode):
    async with start(prefill, decode, allow_mode_header=False) as router:
        await router.complete({names.HEADER_UNCOUNTED: names.UNCOUNTED_STEP}, stream=True)
        (server,) = [span for span in await router.spans() if span.kind.name == "SERVER"]
        assert names.ATTR_UNCOUNTED not in server.attributes
        assert await router.metric('kvpath_router_time_to_first_token_seconds_count{mode="push"}') == 1


async def test_open_metrics_carry_the_trace_of_a_first_token(router, mode):
    response = await router.complete(mode, stream=True)
    await router.spans()
    page = await router.client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers[names.HEADER_TRACE_ID] in page.text
