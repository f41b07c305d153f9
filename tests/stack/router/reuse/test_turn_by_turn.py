"""Conversations through a whole router: what P is told on each turn."""

from __future__ import annotations

import asyncio
import json

import pytest

from connector import names
from stack.router.bodies import CHAT_PATH, COMPLETIONS_PATH
from stack.router.metrics import CONVERSATIONS, REUSE_AGE, REUSE_LOOKUPS, REUSE_NOT_KEPT, REUSE_TOKENS
from stack.router.settings import DECODE, ROUTED_TRANSFERS
from stack.router.stub_engine import Reply, StubEngine

REUSE = {names.HEADER_MODE: names.MODE_REUSE}
OFFER = ("remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_num_tokens")


@pytest.mark.parametrize("path", [COMPLETIONS_PATH, CHAT_PATH])
@pytest.mark.parametrize("stream", [True, False])
async def test_each_turn_offers_p_what_d_kept_of_the_one_before(
    router, prefill, decode, clock, consistent, path, stream, conversation, lookups, offers, rid
):
    talk = conversation(router, path=path, stream=stream)
    responses = []
    for _ in range(4):
        responses.append(await talk.turn())
        clock.seconds += 7
    assert await lookups(router, 4) == ["miss", "hit", "hit", "hit"]
    assert [response.headers[names.HEADER_REUSE] for response in responses] == ["miss", "hit", "hit", "hit"]
    assert offers(prefill) == [None, *(rid(response) for response in responses[:3])]
    first, second = (request.body["kv_transfer_params"] for request in prefill.requests[:2])
    assert not set(OFFER) & set(first)
    own = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_mode": "reuse"}
    traced = {"kvpath_request_id": rid(responses[1]), "traceparent": prefill.requests[1].headers["traceparent"]}
    assert second == {**decode.kept.params(rid(responses[0])), **own, **traced}
    for response, p, d in zip(responses, prefill.requests, decode.requests, strict=True):
        assert response.headers[names.HEADER_MODE] == names.MODE_REUSE
        expected = {**prefill.kv_params(p), "transfer_mode": "reuse", "kvpath_request_id": rid(response)}
        assert d.body["kv_transfer_params"] == {**expected, "traceparent": d.headers["traceparent"]}
    (look,) = [s for s in await router.spans(server=4) if s.attributes.get(names.ATTR_REUSE_AGE) == 7.0][:1]
    assert look.attributes[names.ATTR_REUSE_TOKENS] == 100
    assert look.attributes[names.ATTR_MODE] == names.MODE_REUSE
    assert await router.metric(f'{REUSE_LOOKUPS}_total{{outcome="hit"}}') == 3
    assert await router.metric(f'{REUSE_LOOKUPS}_total{{outcome="miss"}}') == 1
    assert await router.metric(f"{REUSE_TOKENS}_total") == 300
    assert await router.metric(f"{REUSE_AGE}_sum") == 21
    assert await router.metric(CONVERSATIONS) == 1
    assert await router.metric("kvpath_router_telemetry_errors_total") == 0


async def test_a_lookup_is_a_child_of_the_request_before_the_route_to_p(router, consistent, conversation):
    await conversation(router).turn()
    spans = await router.spans()
    consistent(spans)
    (look,) = [span for span in spans if span.name == names.SPAN_REUSE_LOOKUP]
    routes = [span for span in spans if span.name == names.SPAN_ROUTE]
    assert [span.attributes[names.ATTR_PHASE] for span in routes] == ["prefill", "decode"]
    assert all(look.end_time <= route.start_time for route in routes)


@pytest.mark.parametrize("path", [COMPLETIONS_PATH, CHAT_PATH])
async def test_a_followed_stream_passes_byte_for_byte_and_waits_for_nothing(router, decode, path, conversation):
    decode.kept.hold = asyncio.Event()  # D's word does not come at all
    body = {**conversation(router, path=path).body(), "stream": True, "max_tokens": 300}
    response = await router.client.post(path, json=body, headers=REUSE)
    direct = await router.client.post(f"{decode.settings.url}{path}", json=body)
    assert response.content == direct.content
    decode.kept.hold.set()


async def test_the_id_may_come_as_a_header(router, prefill, conversation, offers, rid):
    talk = conversation(router, headers={names.HEADER_CONVERSATION: "c1"})
    first = await talk.turn(conversation_id=None)
    talk.headers = {}
    await talk.turn()
    assert offers(prefill) == [None, rid(first)]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"conversation_id": None}, "no_conversation"),
        ({"prompt": "a", "suffix": "b"}, "not_plain_text"),
    ],
)
async def test_what_has_no_next_turn_is_served_as_a_pull_and_d_need_keep_nothing(
    router, prefill, decode, more, reason, conversation, lookups
):
    response = await conversation(router).turn(**more)
    assert response.headers[names.HEADER_MODE] == names.MODE_REUSE
    assert response.headers[names.HEADER_REUSE] == reason
    (p,), (d,) = prefill.requests, decode.requests
    expected = {**prefill.kv_params(p), "transfer_mode": "reuse", "kvpath_request_id": d.headers["x-request-id"]}
    assert d.body["kv_transfer_params"] == {**expected, "traceparent": d.headers["traceparent"], "kvpath_keep": False}
    assert not set(OFFER) & set(p.body["kv_transfer_params"])
    assert decode.kept.asked == []
    assert await lookups(router, 1) == []
    assert await router.metric(f'{REUSE_NOT_KEPT}_total{{reason="{reason}"}}') == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_after_an_answer_with_more_than_text_the_prompt_can_be_continued(
    router, prefill, decode, stream, conversation, lookups, offers, rid
):
    thought = {
        "index": 0,
        "delta" if stream else "message": {"content": "So.", "reasoning": "Hm."},
        "finish_reason": "stop",
    }
    answer = json.dumps({"choices": [thought]}).encode()
    decode.reply = Reply(raw=[b"data: " + answer + b"\n\n", b"data: [DONE]\n\n"]) if stream else Reply(body=answer)
    talk = conversation(router, path=CHAT_PATH, stream=stream)
    first = await talk.turn()
    await talk.turn()
    assert await lookups(router, 2) == ["miss", "hit"]
    assert offers(prefill)[1] == rid(first)


async def test_the_next_turn_prefers_its_old_decode_engine_among_equals(start, prefill, conversation):
    async with (
        StubEngine(DECODE, "D0", modes=ROUTED_TRANSFERS) as d0,
        StubEngine(DECODE, "D1", modes=ROUTED_TRANSFERS) as d1,
        start(prefill, d0, d1) as router,
    ):
        first, second = conversation(router, "c1"), conversation(router, "c2")
        for talk in (first, second, second, first, first, second):
            await talk.turn()
            await router.spans()
        assert {r.body["conversation_id"] for r in d0.requests} == {"c1"}
        assert {r.body["conversation_id"] for r in d1.requests} == {"c2"}
        d0.reply = Reply(hold=asyncio.Event())
        busy = asyncio.create_task(router.complete({names.HEADER_MODE: names.MODE_PLAIN}))
        await d0.until(lambda stub: stub.in_flight == 1)
        await first.turn()
        assert d1.requests[-1].body["conversation_id"] == "c1"
        d0.reply.hold.set()
        await busy
