"""The modes, leg by leg, over real sockets: what each engine gets, when, and what the client sees."""

from __future__ import annotations

import asyncio

import pytest

from connector import names
from stack.router.settings import DECODE, PREFILL
from stack.router.stub_engine import Reply, StubEngine

PUSH = {names.HEADER_MODE: names.MODE_PUSH}
PULL = {names.HEADER_MODE: names.MODE_PULL}
REGRETTED = 'kvpath_router_early_choices_total{outcome="regretted"}'
KEPT = 'kvpath_router_early_choices_total{outcome="kept"}'


async def test_push_sends_both_legs_with_one_request_id_and_their_own_spans(router, prefill, decode, consistent):
    response = await router.complete(PUSH, max_tokens=3, model="m")
    assert response.status_code == 200
    assert response.headers[names.HEADER_MODE] == names.MODE_PUSH
    (p,), (d,) = prefill.requests, decode.requests
    rid = response.headers[names.HEADER_REQUEST_ID]
    assert p.headers["x-request-id"] == d.headers["x-request-id"] == rid
    spans = await router.spans()
    server = consistent(spans)
    assert response.headers[names.HEADER_TRACE_ID] == f"{server.context.trace_id:032x}"
    by_name = {span.name: span for span in spans}
    assert set(by_name) == {
        "text_completion m",
        names.SPAN_ROUTE,
        names.SPAN_LEG_PREFILL,
        names.SPAN_LEG_DECODE,
    }
    for request, leg in ((p, names.SPAN_LEG_PREFILL), (d, names.SPAN_LEG_DECODE)):
        context = by_name[leg].context
        expected = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        assert request.headers["traceparent"] == expected
        assert request.body["kv_transfer_params"]["traceparent"] == expected
    assert p.body["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_mode": "push",
        "kvpath_request_id": rid,
        "traceparent": p.headers["traceparent"],
    }
    assert d.body["kv_transfer_params"] == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "P0",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
        "pp_size": 1,
        "remote_request_id": rid,
        "remote_block_ids": None,
        "transfer_mode": "push",
        "kvpath_request_id": rid,
        "traceparent": d.headers["traceparent"],
    }


async def test_push_gives_decode_its_leg_while_prefill_still_computes(router, prefill, decode):
    prefill.reply = Reply(hold=asyncio.Event())
    asking = asyncio.create_task(router.complete(PUSH))
    await decode.until(lambda stub: len(stub.requests) == 1)
    assert not prefill.reply.hold.is_set()
    prefill.reply.hold.set()
    assert (await asking).status_code == 200


async def test_pull_sends_decode_what_prefill_answered_and_only_then(router, prefill, decode, consistent):
    prefill.reply = Reply(hold=asyncio.Event())
    asking = asyncio.create_task(router.complete(PULL))
    await prefill.until(lambda stub: stub.in_flight == 1)
    assert decode.requests == []
    prefill.reply.hold.set()
    response = await asking
    assert response.headers[names.HEADER_MODE] == names.MODE_PULL
    (p,), (d,) = prefill.requests, decode.requests
    assert d.body["kv_transfer_params"] == {
        **prefill.kv_params(p),
        "kvpath_request_id": response.headers[names.HEADER_REQUEST_ID],
        "traceparent": d.headers["traceparent"],
    }
    spans = await router.spans()
    consistent(spans)
    phases = [span.attributes[names.ATTR_PHASE] for span in spans if span.name == names.SPAN_ROUTE]
    assert phases == ["prefill", "decode"]


async def test_pull_chooses_decode_by_its_load_when_prefill_has_finished(start, prefill):
    async with StubEngine(DECODE, "D0") as d0, StubEngine(DECODE, "D1") as d1, start(prefill, d0, d1) as router:
        prefill.reply = Reply(hold=asyncio.Event())
        pulling = asyncio.create_task(router.complete(PULL))
        await prefill.until(lambda stub: stub.in_flight == 1)
        # While P computes, D0 gets busy; an early choice would have been D0.
        d0.reply = Reply(hold=asyncio.Event())
        busy = asyncio.create_task(router.complete({names.HEADER_MODE: names.MODE_PLAIN}))
        await d0.until(lambda stub: stub.in_flight == 1)
        prefill.reply.hold.set()
        assert (await pulling).status_code == 200
        assert len(d1.requests) == 1
        d0.reply.hold.set()
        await busy


async def test_push_counts_an_early_choice_that_would_be_made_otherwise_later(start, prefill):
    async with StubEngine(DECODE, "D0") as d0, StubEngine(DECODE, "D1") as d1, start(prefill, d0, d1) as router:
        prefill.reply, d0.reply, d1.reply = (Reply(hold=asyncio.Event()) for _ in range(3))
        plain = {names.HEADER_MODE: names.MODE_PLAIN}
        pushing = asyncio.create_task(router.complete(PUSH))
        await d0.until(lambda stub: stub.in_flight == 1)
        large = asyncio.create_task(router.complete(plain, prompt="x" * 4000))
        await d1.until(lambda stub: stub.in_flight == 1)
        small = asyncio.create_task(router.complete(plain))
        await d0.until(lambda stub: stub.in_flight == 2)
        d1.reply.hold.set()
        await large  # D1 is idle again, and D0 has another request beside the pushed one
        prefill.reply.hold.set()
        while (await router.metric(REGRETTED)) == 0:
            assert not pushing.done()
        d0.reply.hold.set()
        assert [response.status_code for response in await asyncio.gather(pushing, small)] == [200, 200]
        assert await router.metric(REGRETTED) == 1
        assert (await router.complete(PUSH)).status_code == 200
        assert await router.metric(KEPT) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"n": 2}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"use_beam_search": True}, "beam_search"),
        ({"prompt": ["a", "b"]}, "batch"),
        ({"prompt": [[1, 2], [3]]}, "batch"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"echo": True}, "echo"),
    ],
)
async def test_what_transfer_cannot_serve_runs_plain_and_says_so(router, prefill, decode, consistent, body, reason):
    response = await router.complete(PUSH, **body)
    assert response.status_code == 200
    assert response.headers[names.HEADER_MODE] == names.MODE_PLAIN
    assert response.headers[names.HEADER_FALLBACK] == reason
    assert prefill.requests == []
    assert "kv_transfer_params" not in decode.requests[0].body
    server = consistent(await router.spans())
    assert server.attributes[names.ATTR_FALLBACK] == reason
    assert await router.metric(f'kvpath_router_fallbacks_total{{reason="{reason}"}}') == 1


async def test_a_fall_back_that_is_refused_was_not_served_plain(router, decode, consistent):
    decode.reply = Reply(status=503)
    assert (await router.complete(PUSH, n=2)).status_code == 503
    server = consistent(await router.spans(), "503")
    assert server.attributes[names.ATTR_FALLBACK] == "n"
    assert await router.metric('kvpath_router_fallbacks_total{reason="n"}') == 0


@pytest.mark.parametrize(
    ("kv_params", "reason"),
    [
        (None, "kv_params_missing"),
        ("text", "kv_params_type"),
        ({"do_remote_prefill": True}, "kv_params_do_remote_decode"),
        ({"remote_engine_id": "P9"}, "kv_params_remote_engine_id"),
        ({"remote_block_ids": [1, 2]}, "kv_params_remote_block_ids"),
        ({"remote_block_ids": [["1"]]}, "kv_params_remote_block_ids"),
        ({"remote_block_ids": [[]]}, "kv_params_remote_block_ids"),
        ({"remote_port": 70000}, "kv_params_remote_port"),
        ({"remote_host": "elsewhere"}, "kv_params_remote_host"),
        ({"transfer_mode": "push"}, "kv_params_transfer_mode"),
    ],
)
async def test_a_bad_answer_of_prefill_falls_back_to_plain(router, prefill, decode, consistent, kv_params, reason):
    def reply(request):
        whole = prefill.kv_params(request)
        partial = isinstance(kv_params, dict) and "do_remote_prefill" not in kv_params
        return Reply(kv_params={**whole, **kv_params} if partial else kv_params)

    prefill.choose_reply = reply
    response = await router.complete(PULL)
    assert response.status_code == 200
    assert response.headers[names.HEADER_MODE] == names.MODE_PLAIN
    assert response.headers[names.HEADER_FALLBACK] == reason
    assert "kv_transfer_params" not in decode.requests[0].body
    assert consistent(await router.spans()).attributes[names.ATTR_FALLBACK] == reason


async def test_transfer_parameters_of_a_client_are_never_forwarded(router, prefill, decode, mode):
    theirs = {"do_remote_prefill": True, "remote_host": "attacker", "remote_port": 1}
    sent = {"kv_transfer_params": theirs, "vllm_xargs": {"kv_transfer_params": "x", "kept": 1}}
    for header in (mode, {names.HEADER_MODE: names.MODE_PLAIN}):
        assert (await router.complete(header, **sent)).status_code == 200
    seen = [request.body for request in prefill.requests + decode.requests]
    assert len(seen) == 3
    assert all("attacker" not in str(body) and body["vllm_xargs"] == {"kept": 1} for body in seen)
    assert await router.metric("kvpath_router_client_transfer_params_dropped_total") == 2


async def test_requests_with_the_same_client_id_do_not_share_a_request_id(router, prefill, consistent):
    header = {**PUSH, names.HEADER_REQUEST_ID: "mine"}
    answers = [await router.complete(header) for _ in range(2)]
    assert len({request.headers["x-request-id"] for request in prefill.requests}) == 2
    assert "mine" not in {answer.headers[names.HEADER_REQUEST_ID] for answer in answers}
    spans = await router.spans(server=2)
    theirs = [s.attributes[names.ATTR_CLIENT_REQUEST_ID] for s in spans if s.kind.name == "SERVER"]
    assert theirs == ["mine", "mine"]


async def test_the_clients_trace_is_continued(router, decode, consistent):
    parent = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    response = await router.complete({**PUSH, "traceparent": parent, "tracestate": "vendor=1"})
    assert response.headers[names.HEADER_TRACE_ID] == "ab" * 16
    server = consistent(await router.spans())
    assert server.parent.span_id == int("cd" * 8, 16)
    assert decode.requests[0].headers["tracestate"] == "vendor=1"


async def test_idle_engines_take_turns(start):
    async with StubEngine(PREFILL, "P0") as p, StubEngine(DECODE, "D0") as d0, StubEngine(DECODE, "D1") as d1:
        async with start(p, d0, d1) as router:
            for _ in range(4):
                await router.complete(PUSH)
        assert (len(d0.requests), len(d1.requests)) == (2, 2)
