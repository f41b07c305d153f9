"""Turns that are not served from the last one, each with its reason in the span."""

from __future__ import annotations

import asyncio

import pytest

from connector import names
from stack.router.bodies import CHAT_PATH, COMPLETIONS_PATH
from stack.router.metrics import REUSE_NOT_KEPT
from stack.router.stub_engine import Reply

REUSE = {names.HEADER_MODE: names.MODE_REUSE}


@pytest.mark.parametrize("path", [COMPLETIONS_PATH, CHAT_PATH])
async def test_a_history_that_was_edited_is_computed_and_ds_blocks_are_freed(
    router, prefill, path, conversation, lookups, offers, rid
):
    talk = conversation(router, path=path)
    first = await talk.turn()
    talk.prompt = talk.prompt.replace("first", "last")
    talk.messages[0] = {"role": "user", "content": "The last question."}
    await talk.turn()
    assert await lookups(router, 2) == ["miss", "edited"]
    assert offers(prefill) == [None, rid(first)]
    told = prefill.requests[1].body["kv_transfer_params"]
    assert (told["remote_num_tokens"], told["kvpath_token_marks"]) == (0, [])
    await talk.turn()  # the edited conversation goes on
    assert await lookups(router, 3) == ["miss", "edited", "hit"]


@pytest.mark.parametrize(("age_s", "outcome"), [(474, "hit"), (476, "expired"), (481, "expired")])
async def test_nothing_that_is_too_old_is_offered(
    router, prefill, clock, age_s, outcome, conversation, lookups, offers
):
    talk = conversation(router)
    await talk.turn()
    await talk.remembered()
    clock.seconds += age_s
    await talk.turn()
    assert await lookups(router, 2) == ["miss", outcome]
    assert (offers(prefill)[1] is not None) == (outcome == "hit")


async def test_a_hit_does_not_renew(router, clock, conversation, lookups):
    talk = conversation(router)
    for age_s, outcome in ((0, "miss"), (300, "hit"), (300, "hit"), (476, "expired")):
        clock.seconds += age_s
        await talk.turn()
        assert (await lookups(router, 1))[-1] == outcome


async def test_of_a_restarted_decode_engine_nothing_is_left(router, prefill, decode, conversation, lookups, offers):
    talk = conversation(router)
    await talk.turn()
    await talk.remembered()
    await decode.stop()
    await decode.start()
    async with asyncio.timeout(5):
        while (await router.client.get("/ready")).status_code != 200:
            pass
    await talk.turn()
    assert await lookups(router, 2) == ["miss", "gone"]
    assert offers(prefill) == [None, None]
    await talk.turn()
    assert (await lookups(router, 3))[-1] == "hit"
    assert prefill.requests[2].body["kv_transfer_params"]["remote_engine_id"] == "D0-life-2"


async def test_a_decode_engine_that_does_not_say_is_not_waited_for(start, prefill, decode, conversation, lookups):
    async with start(prefill, decode, reuse_kept_timeout_s=0.05) as router:
        talk = conversation(router)
        await talk.turn()
        await talk.remembered()
        decode.kept.hold = asyncio.Event()
        await talk.turn()
        assert await lookups(router, 2) == ["miss", "gone"]
        decode.kept.hold.set()


@pytest.mark.parametrize(("tokens", "outcome"), [(63, "too_short"), (64, "hit"), (65, "hit")])
async def test_from_64_tokens_on_they_are_offered(
    router, prefill, decode, tokens, outcome, conversation, lookups, offers, rid
):
    decode.kept.tokens = tokens
    talk = conversation(router)
    first = await talk.turn()
    await talk.turn()
    assert await lookups(router, 2) == ["miss", outcome]
    assert offers(prefill) == [None, rid(first)]
    told = prefill.requests[1].body["kv_transfer_params"]
    assert told["remote_num_tokens"] == (tokens if outcome == "hit" else 0)


async def test_a_turn_whose_client_left_leaves_nothing(router, prefill, decode, client_stream, conversation, lookups):
    decode.reply = Reply(tokens=500, pause_at=20, resume=asyncio.Event())
    async with client_stream(router, headers={**REUSE, names.HEADER_CONVERSATION: "c1"}) as reader:
        await reader.readuntil(b" word")
    await decode.until(lambda stub: stub.in_flight == 0)
    decode.reply = Reply()
    await router.spans()
    await conversation(router).turn()
    assert await lookups(router, 2) == ["miss", "miss"]
    assert await router.metric(f'{REUSE_NOT_KEPT}_total{{reason="answer_unfinished"}}') == 1


async def test_a_client_that_leaves_with_the_last_token_can_go_on(router, decode, client_stream, conversation, lookups):
    """Such as one that reads up to ``finish_reason`` and not to ``[DONE]``: the answer had ended by its length."""
    decode.reply = Reply(tokens=2, pause_at=2, resume=asyncio.Event())
    talk = conversation(router, stream=True)
    headers = {**REUSE, names.HEADER_CONVERSATION: "c1"}
    async with client_stream(router, headers=headers, prompt=talk.prompt) as reader:
        await reader.readuntil(b'"length"')
    await decode.until(lambda stub: stub.in_flight == 0)
    await router.spans()
    decode.reply = Reply()
    talk.prompt += " word end And then?"
    response = await talk.turn()
    assert await lookups(router, 2) == ["miss", "hit"]
    assert response.headers[names.HEADER_REUSE] == "hit"
    assert await router.metric(f'{REUSE_NOT_KEPT}_total{{reason="answer_unfinished"}}') == 0


async def test_a_turn_without_an_answer_is_told_from_an_unfinished_one(router, decode, conversation):
    decode.reply = Reply(status=400)
    talk = conversation(router)
    response = await router.client.post(talk.path, json=talk.body(), headers=REUSE)
    assert (response.status_code, response.headers[names.HEADER_REUSE]) == (400, "miss")
    await router.spans()
    assert await router.metric(f'{REUSE_NOT_KEPT}_total{{reason="no_answer"}}') == 1


async def test_a_failed_prefill_fails_as_in_pull(router, prefill, consistent, conversation, lookups):
    talk = conversation(router)
    await talk.turn()
    prefill.reply = Reply(status=503)
    response = await router.client.post(talk.path, json=talk.body(), headers=REUSE)
    assert response.status_code == 503
    prefill.reply = Reply()
    await talk.turn()
    assert await lookups(router, 3) == ["miss", "hit", "miss"]


async def test_an_answer_of_p_that_cannot_be_used_falls_back_to_plain(
    router, prefill, decode, conversation, lookups, rid
):
    prefill.reply = Reply(kv_params=None)
    talk = conversation(router)
    response = await talk.turn()
    assert response.headers[names.HEADER_FALLBACK] == "kv_params_missing"
    prefill.reply = Reply()
    await talk.turn()
    assert await lookups(router, 2) == ["miss", "miss"]
    assert await router.metric(f'{REUSE_NOT_KEPT}_total{{reason="answer_unfinished"}}') == 0
    assert rid(response) not in decode.kept.asked


async def test_a_request_that_is_replayed_uses_its_reference_once(router, prefill, conversation, lookups, offers, rid):
    talk = conversation(router)
    first = await talk.turn()
    second = {**talk.body()}
    responses = [await router.client.post(talk.path, json=second, headers=REUSE) for _ in range(3)]
    # The first replay has become the conversation's last turn, which the next does not go on from.
    assert await lookups(router, 4) == ["miss", "hit", "edited", "edited"]
    assert offers(prefill) == [None, rid(first), rid(responses[0]), rid(responses[1])]
    assert [r.body["kv_transfer_params"].get("remote_num_tokens") for r in prefill.requests] == [None, 100, 0, 0]


async def test_of_two_simultaneous_turns_one_hits(router, prefill, decode, conversation, lookups, offers, rid):
    talk = conversation(router)
    first = await talk.turn()
    prefill.reply = Reply(hold=asyncio.Event())
    both = [asyncio.create_task(router.client.post(talk.path, json=talk.body(), headers=REUSE)) for _ in range(2)]
    await prefill.until(lambda stub: stub.in_flight == 2)
    prefill.reply.hold.set()
    assert [response.status_code for response in await asyncio.gather(*both)] == [200, 200]
    assert sorted(await lookups(router, 3)) == ["hit", "miss", "miss"]
    assert sorted(offers(prefill), key=str) == sorted([None, None, rid(first)], key=str)
