from __future__ import annotations

import pytest

from connector import names

TOKEN = {"authorization": "Bearer secret"}


async def test_without_a_token_there_is_no_admin_endpoint(router):
    for headers in ({}, {"authorization": "Bearer"}, {"authorization": "Bearer None"}):
        assert (await router.client.get("/admin/split", headers=headers)).status_code == 404
        assert (await router.client.put("/admin/split", json={"pull": 1}, headers=headers)).status_code == 404


async def test_the_split_changes_at_run_time_for_whoever_has_the_token(start, prefill, decode):
    async with start(prefill, decode, admin_token="secret", split={names.MODE_PUSH: 1}) as router:
        for headers in ({}, {"authorization": "secret"}, {"authorization": "Bearer secre"}):
            response = await router.client.put("/admin/split", json={"pull": 1}, headers=headers)
            assert response.status_code == 401
            wrong = await router.client.put("/admin/split", json={"teleport": -1}, headers=headers)
            assert wrong.status_code == 401
            assert response.json()["error"]["type"] == "invalid_request_error"
        assert (await router.complete()).headers[names.HEADER_MODE] == names.MODE_PUSH
        changed = await router.client.put("/admin/split", json={"pull": 3}, headers=TOKEN)
        assert changed.json() == {"pull": 3}
        assert (await router.client.get("/admin/split", headers=TOKEN)).json() == {"pull": 3}
        assert (await router.complete()).headers[names.HEADER_MODE] == names.MODE_PULL
        assert await router.metric('kvpath_router_split_weight{mode="pull"}') == 3


async def test_an_empty_split_removes_it_and_the_default_mode_serves_all(start, prefill, decode):
    modes = {"default_mode": names.MODE_PULL, "split": {names.MODE_PUSH: 1}}
    async with start(prefill, decode, admin_token="secret", **modes) as router:
        removed = await router.client.put("/admin/split", json={}, headers=TOKEN)
        assert (removed.status_code, removed.json()) == (200, {})
        assert (await router.complete()).headers[names.HEADER_MODE] == names.MODE_PULL


@pytest.mark.parametrize("split", [{"reuse": 1}, {"pull": -1}, {"pull": 0}, {"pull": "x"}, [1]])
async def test_a_split_that_makes_no_sense_is_refused_and_changes_nothing(start, prefill, decode, split):
    async with start(prefill, decode, admin_token="secret", split={names.MODE_PUSH: 1}) as router:
        response = await router.client.put("/admin/split", json=split, headers=TOKEN)
        assert response.status_code == 400
        assert response.json()["error"]["message"]
        assert (await router.client.get("/admin/split", headers=TOKEN)).json() == {"push": 1}


async def test_a_conversation_keeps_its_mode(start, prefill, decode):
    async with start(prefill, decode, split={names.MODE_PUSH: 50, names.MODE_PULL: 50}) as router:
        seen = {}
        for turn in range(3):
            for conversation in "abcdef":
                response = await router.complete(conversation_id=conversation, seed=turn)
                seen.setdefault(conversation, set()).add(response.headers[names.HEADER_MODE])
        assert all(len(modes) == 1 for modes in seen.values())
        assert set().union(*seen.values()) == {names.MODE_PUSH, names.MODE_PULL}
