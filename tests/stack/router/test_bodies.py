from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.router import bodies
from stack.router.bodies import CHAT_PATH, COMPLETIONS_PATH
from stack.router.errors import BadRequestError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KNOWN = [
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "n",
    "best_of",
    "seed",
    "stop",
]
client_bodies = st.dictionaries(st.sampled_from(KNOWN) | st.text(), values, max_size=8)


@given(client_bodies)
def test_decodes_body_is_the_clients_in_meaning(body):
    again = bodies.parse(bodies.encode(bodies.decode_body(body, None)))
    assert again == body
    with_params = bodies.parse(bodies.encode(bodies.decode_body(body, {"a": 1})))
    assert with_params == {**body, "kv_transfer_params": {"a": 1}}


@given(client_bodies, st.sampled_from([CHAT_PATH, COMPLETIONS_PATH]))
def test_prefills_body_ends_after_the_prompt_and_keeps_everything_else(body, path):
    before = json.dumps(body)
    leg = bodies.prefill_body(path, body, {"a": 1})
    assert json.dumps(body) == before, "the client's body must stay as it was for D"
    assert leg["stream"] is False
    assert leg["max_tokens"] == 1
    assert leg.get("max_completion_tokens", 1) == 1
    assert ("max_completion_tokens" in leg) == (path == CHAT_PATH or "max_completion_tokens" in body)
    assert leg["kv_transfer_params"] == {"a": 1}
    assert not {"stream_options", "n", "best_of"} & leg.keys()
    changed = {*KNOWN[:7], "kv_transfer_params"}
    assert {k: v for k, v in leg.items() if k not in changed} == {k: v for k, v in body.items() if k not in changed}


@pytest.mark.parametrize(("given_", "sent"), [(0, 0), (1, 1), (5, 1), ("5", 1), (2.0, 1), (None, None), ("x", "x")])
def test_min_tokens_is_at_most_one_on_prefill(given_, sent):
    assert bodies.prefill_body(COMPLETIONS_PATH, {"min_tokens": given_}, {})["min_tokens"] == sent
    assert "min_tokens" not in bodies.prefill_body(COMPLETIONS_PATH, {}, {})


def test_a_missing_max_tokens_stays_missing_on_decode():
    assert "max_tokens" not in bodies.decode_body({"prompt": "p"}, {"a": 1})


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (COMPLETIONS_PATH, {"n": 1, "best_of": 1, "echo": False, "prompt": "p"}, None),
        (COMPLETIONS_PATH, {"n": None, "prompt": [1, 2, 3]}, None),
        (COMPLETIONS_PATH, {"n": "2"}, "n"),
        (COMPLETIONS_PATH, {"prompt": ["a"]}, "batch"),
        (COMPLETIONS_PATH, {"prompt_embeds": "AAAA"}, "prompt_embeds"),
        (COMPLETIONS_PATH, {"prompt_logprobs": 0}, "prompt_logprobs"),
        (CHAT_PATH, {"messages": [], "echo": True}, None),
        (CHAT_PATH, {"messages": [], "n": 2}, "n"),
    ],
)
def test_plain_reason(path, body, reason):
    assert bodies.plain_reason(path, body) == reason


def test_transfer_fields_are_dropped_wherever_the_engine_would_take_them():
    body = {"kv_transfer_params": {}, "ec_transfer_params": {}, "vllm_xargs": {"kv_transfer_params": "x", "k": 1}}
    assert bodies.drop_transfer_fields(body) == [
        "kv_transfer_params",
        "ec_transfer_params",
        "vllm_xargs.kv_transfer_params",
    ]
    assert body == {"vllm_xargs": {"k": 1}}
    assert bodies.drop_transfer_fields(body) == []


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"1", b"\xff", b'{"a": ' + b"9" * 5000 + b"}", b"[" * 100_000])
def test_parse_refuses_what_is_no_object(raw):
    with pytest.raises(BadRequestError):
        bodies.parse(raw)


def test_prompt_tokens_are_exact_for_ids_and_estimated_for_text():
    assert bodies.estimated_prompt_tokens({"prompt": [5, 6, 7]}, 999) == 3
    assert bodies.estimated_prompt_tokens({"prompt": "x" * 400}, 999) == 101
    assert bodies.estimated_prompt_tokens({"messages": []}, 400) == 101


def test_the_conversation_comes_from_the_body_then_from_the_header():
    header = {b"x-conversation-id": b"h"}
    assert bodies.conversation_of({"conversation_id": "b"}, header) == "b"
    assert bodies.conversation_of({"conversation_id": 3}, header) == "h"
    assert bodies.conversation_of({}, {}) is None
