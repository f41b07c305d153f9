from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.kept import Kept, KeptLedger
from connector.kept_service import KeptService
from stack.router.conversations import kept
from stack.router.stub_kept import StubKept
from stack.router.upstream import Upstream

RID = "ab" * 16
GOOD = {"params": StubKept("D0").params(RID), "tokens": 100, "expires_in_s": 479.5}
OPTIONAL = {"dcp_size", "pp_size", "remote_blocks_expiry_time", "kvpath_later_field"}
ROUTERS_OWN = {"do_remote_prefill", "do_remote_decode", "transfer_mode"}


def read(said):
    return kept.read(json.dumps(said).encode())


def changed(field, value):
    return {**GOOD, "params": {**GOOD["params"], field: value}}


def test_everything_that_p_needs_is_taken_as_it_is():
    found = read(GOOD)
    assert (found.tokens, found.expires_in_s) == (100, 479.5)
    assert found.params == {key: value for key, value in GOOD["params"].items() if key not in ROUTERS_OWN}


@pytest.mark.parametrize("field", sorted(GOOD["params"].keys() - OPTIONAL - ROUTERS_OWN))
def test_a_missing_field_makes_it_unusable(field):
    params = {key: value for key, value in GOOD["params"].items() if key != field}
    assert read({**GOOD, "params": params}) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("remote_block_ids", [1, 2]),
        ("remote_block_ids", [[-1]]),
        ("remote_block_ids", [[]]),
        ("remote_engine_id", ""),
        ("remote_host", 7),
        ("remote_port", 0),
        ("tp_size", 0),
        ("remote_num_tokens", -1),
        ("remote_num_tokens", True),
        ("remote_blocks_expiry_time", "soon"),
        ("kvpath_token_marks", {}),
        ("kvpath_token_marks", [[60]]),
        ("kvpath_token_marks", [["60", "ab"]]),
    ],
)
def test_a_wrong_field_makes_it_unusable(field, value):
    assert read(changed(field, value)) is None


@pytest.mark.parametrize(
    "said", [[], {}, {**GOOD, "params": []}, {**GOOD, "tokens": "1"}, {**GOOD, "expires_in_s": None}]
)
def test_another_answer_is_unusable(said):
    assert read(said) is None


@given(st.binary())
def test_no_answer_raises(body):
    assert kept.read(body) is None


def test_to_release_is_to_offer_no_tokens():
    released = kept.only_release(read(GOOD).params)
    assert released == {**read(GOOD).params, "remote_num_tokens": 0, "kvpath_token_marks": []}


async def test_the_right_address_is_asked():
    asked = []

    async def fetch(url, timeout_s):
        asked.append((url, timeout_s))
        return (200, json.dumps(GOOD).encode()) if len(asked) == 1 else (404, b"{}") if len(asked) == 2 else None

    answers = [await kept.ask(fetch, "http://d:5620", RID, 0.25) for _ in range(3)]
    assert answers == [read(GOOD), None, None]
    assert asked == [(f"http://d:5620/kept/{RID}", 0.25)] * 3


async def test_the_connectors_own_service_is_understood():
    now = 100.0
    ledger = KeptLedger(1000, clock=lambda: now)
    ledger.add("cmpl-r-0-d", Kept(RID, GOOD["params"], 100, 4, now + 480))
    service = KeptService(ledger, "127.0.0.1", 0)
    upstream = Upstream(connect_timeout_s=2, idle_s=5, keepalive_s=4, get_timeout_s=5, on_retry=lambda: None)
    await upstream.start()
    try:
        url = f"http://127.0.0.1:{service.port}"
        found = await kept.ask(upstream.fetch, url, RID, 5.0)
        assert found == kept.Kept(read(GOOD).params, 100, 480.0)
        ledger.forget(["cmpl-r-0-d"])
        assert await kept.ask(upstream.fetch, url, RID, 5.0) is None
    finally:
        await upstream.stop()
        service.close()
    await upstream.start()
    assert await kept.ask(upstream.fetch, url, RID, 5.0) is None  # nobody listens any more
    await upstream.stop()
