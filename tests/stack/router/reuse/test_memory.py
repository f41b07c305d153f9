"""Whose turns the router's memory gives to whom, how much it takes, and that no text is in it."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from stack.router import endpoint
from stack.router.bodies import CHAT_PATH, COMPLETIONS_PATH
from stack.router.conversations.entry import key_of
from stack.router.metrics import CONVERSATIONS, CONVERSATIONS_BYTES, CONVERSATIONS_EVICTED, REUSE_STORE_ERRORS


async def callers_stay_apart(router, prefill, conversation, offers):
    """Two callers use one id, one text and one moment; fails when either is offered what the other's turn left."""
    mine = conversation(router, headers={"authorization": "Bearer mine"})
    theirs = conversation(router, headers={"authorization": "Bearer theirs"})
    nobodys = conversation(router)
    for _ in range(3):
        for talk in (mine, theirs, nobodys):
            await talk.turn()
    left = {}
    for request, offered in zip(prefill.requests, offers(prefill), strict=True):
        caller = request.headers.get("authorization")
        assert offered == left.get(caller)
        left[caller] = request.headers["x-request-id"]


async def conversations_stay_apart(router, prefill, conversation, offers):
    """One caller has three conversations of the same text; fails when one is offered what another left."""
    talks = [conversation(router, f"c{i}") for i in range(3)]
    for _ in range(3):
        for talk in talks:
            await talk.turn()
    left = {}
    for request, offered in zip(prefill.requests, offers(prefill), strict=True):
        talk = request.body["conversation_id"]
        assert offered == left.get(talk)
        left[talk] = request.headers["x-request-id"]


async def test_two_callers_with_one_id_never_meet(router, prefill, conversation, offers):
    await callers_stay_apart(router, prefill, conversation, offers)
    assert await router.metric(CONVERSATIONS) == 3


async def test_two_conversations_never_meet(router, prefill, conversation, offers):
    await conversations_stay_apart(router, prefill, conversation, offers)


async def test_the_test_would_see_callers_that_meet(router, prefill, conversation, offers, monkeypatch):
    monkeypatch.setattr(endpoint, "key_of", lambda _, conversation: key_of(None, conversation))
    with pytest.raises(AssertionError):
        await callers_stay_apart(router, prefill, conversation, offers)


async def test_the_test_would_see_conversations_that_meet(router, prefill, conversation, offers, monkeypatch):
    monkeypatch.setattr(endpoint, "key_of", lambda caller, _: key_of(caller, ""))
    with pytest.raises(AssertionError):
        await conversations_stay_apart(router, prefill, conversation, offers)


async def test_an_adapter_never_sees_the_cache_of_another(router, prefill, conversation, lookups):
    talk = conversation(router)
    await talk.turn(model="one adapter")
    await talk.turn(model="another")
    assert await lookups(router, 2) == ["miss", "edited"]


@pytest.mark.parametrize("path", [COMPLETIONS_PATH, CHAT_PATH])
async def test_no_text_is_kept_or_logged(start, prefill, decode, caplog, redis_url, path, conversation, rid):
    caplog.set_level("DEBUG")
    secrets = ("Xylophone", "Zeppelin", "Quetzal")
    async with (
        start(prefill, decode, reuse_store_url=redis_url) as sharing,
        start(prefill, decode) as alone,
        Redis.from_url(redis_url) as server,
    ):
        for router in (sharing, alone):
            talk = conversation(router, "Zeppelin", path, headers={"authorization": "Quetzal"}, prompt="Xylophone")
            talk.messages[0]["content"] = "Xylophone"
            last = await talk.turn()
            await router.spans()
            await talk.remembered()
        rows = alone.app.generation._conversations._memory._rows
        stored = [str([*rows, *rows.values()])]
        stored += [str([key, await server.get(key)]) for key in await server.keys()]
        assert len(stored) == 2
        assert rid(last) in stored[0]  # this is where it would be
        spans = [*await sharing.spans(), *await alone.spans()]
    seen = [*stored, caplog.text, *(str(dict(span.attributes)) for span in spans)]
    assert not [secret for secret in secrets for text in seen if secret in text]


async def test_the_table_is_bounded_and_says_how_large_it_is(start, prefill, decode, conversation):
    async with start(prefill, decode, reuse_max_conversations=2) as router:
        assert await router.metric(CONVERSATIONS) == 0
        for number in range(3):
            talk = conversation(router, f"c{number}")
            await talk.turn()
            await talk.remembered()
        assert await router.metric(CONVERSATIONS) == 2
        assert await router.metric(f"{CONVERSATIONS_EVICTED}_total") == 1
        assert 500 < await router.metric(CONVERSATIONS_BYTES) < 5000


async def test_a_restarted_router_knows_nothing(start, prefill, decode, conversation, lookups, offers):
    talk = conversation(None)
    for _ in range(2):
        async with start(prefill, decode) as router:
            talk.router = router
            await talk.turn()
            assert await lookups(router, 1) == ["miss"]
    assert offers(prefill) == [None, None]


async def test_another_router_finds_it_in_shared_memory(
    start, prefill, decode, redis_url, conversation, lookups, offers, rid
):
    talk = conversation(None)
    responses = []
    for outcome in ("miss", "hit", "hit"):
        async with start(prefill, decode, reuse_store_url=redis_url) as router:
            talk.router = router
            responses.append(await talk.turn())
            assert await lookups(router, 1) == [outcome]
            assert await router.metric(f"{REUSE_STORE_ERRORS}_total") == 0
    assert offers(prefill) == [None, rid(responses[0]), rid(responses[1])]


async def test_without_its_shared_memory_a_router_computes(start, prefill, decode, tmp_path, conversation, lookups):
    async with start(prefill, decode, reuse_store_url=f"unix://{tmp_path}/nothing.sock") as router:
        talk = conversation(router)
        await talk.turn()
        await talk.turn()
        assert await lookups(router, 2) == ["miss", "miss"]
        assert await router.metric(f"{REUSE_STORE_ERRORS}_total") >= 1
