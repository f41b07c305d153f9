from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.router import params
from stack.router.settings import EngineSettings

P = EngineSettings(
    url="http://p:1", role="prefill", engine_id="P0", side_channel_host="10.0.0.1", side_channel_port=5600
)
GOOD = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2], []],
    "remote_engine_id": "P0",
    "remote_request_id": "cmpl-r-0-abcd",
    "remote_host": "10.0.0.1",
    "remote_port": 5601,
    "tp_size": 2,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 40,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "pull",
}
REQUIRED = sorted(
    GOOD.keys() - {"dcp_size", "pp_size", "remote_num_tokens", "remote_blocks_expiry_time", "transfer_mode"}
)


def read(kv_params):
    return params.read_answer(json.dumps({"kv_transfer_params": kv_params}).encode(), P)


def test_a_whole_answer_goes_to_decode_under_its_own_span():
    answered = read({**GOOD, "traceparent": "old", "later_field": 7})
    sent = params.for_pull_decode("pull", answered, "rid", "new")
    assert sent == {**GOOD, "later_field": 7, "traceparent": "new", "kvpath_request_id": "rid"}
    assert "traceparent" not in params.for_pull_decode("pull", answered, "rid", None)


def test_in_reuse_p_is_told_what_d_keeps_and_d_whether_to_keep():
    kept = {"remote_block_ids": [[4]], "remote_engine_id": "D0", "do_remote_prefill": True, "transfer_mode": "pull"}
    assert params.for_prefill("reuse", "rid", None, kept) == {
        "remote_block_ids": [[4]],
        "remote_engine_id": "D0",
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "transfer_mode": "reuse",
        "kvpath_request_id": "rid",
    }
    expected = {**GOOD, "transfer_mode": "reuse", "kvpath_request_id": "rid"}
    assert params.for_pull_decode("reuse", GOOD, "rid", None) == expected
    assert params.for_pull_decode("reuse", GOOD, "rid", None, followed=False) == {**expected, "kvpath_keep": False}
    assert "kvpath_keep" not in params.for_pull_decode("pull", GOOD, "rid", None, followed=False)


@pytest.mark.parametrize("field", REQUIRED)
def test_a_missing_field_is_refused_by_name(field):
    assert read({k: v for k, v in GOOD.items() if k != field}) == params.Refusal(f"kv_params_{field}")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("do_remote_prefill", 1),
        ("do_remote_decode", True),
        ("remote_engine_id", "P1"),
        ("remote_request_id", ""),
        ("remote_request_id", "a b"),
        ("remote_host", "10.0.0.2"),
        ("remote_host", None),
        ("remote_port", 0),
        ("remote_port", "5601"),
        ("remote_port", True),
        ("remote_block_ids", []),
        ("remote_block_ids", [[]]),
        ("remote_block_ids", [1]),
        ("remote_block_ids", [[1, -1]]),
        ("remote_block_ids", [[1, True]]),
        ("remote_block_ids", [[1.0]]),
        ("tp_size", 0),
        ("pp_size", "1"),
        ("remote_num_tokens", -1),
        ("remote_blocks_expiry_time", "soon"),
        ("transfer_mode", "push"),
    ],
)
def test_a_wrong_field_is_refused_by_name(field, value):
    assert read({**GOOD, field: value}) == params.Refusal(f"kv_params_{field}")


@pytest.mark.parametrize(
    ("answered", "accepted"), [("prefill", True), ("172.18.0.5", True), ("fd00::5", True), ("elsewhere", False)]
)
def test_a_p_known_by_name_may_answer_with_its_address_but_with_no_other_name(answered, accepted):
    by_name = P.model_copy(update={"side_channel_host": "prefill"})
    answer = json.dumps({"kv_transfer_params": {**GOOD, "remote_host": answered}}).encode()
    assert isinstance(params.read_answer(answer, by_name), dict) is accepted


@given(st.binary() | st.text().map(str.encode))
def test_no_answer_raises(answer):
    assert isinstance(params.read_answer(answer, P), params.Refusal)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), json_values, min_size=1))
def test_what_is_accepted_always_has_the_right_types(changes):
    answered = read({**GOOD, **changes})
    if isinstance(answered, params.Refusal):
        return
    assert answered["remote_engine_id"] == "P0"
    assert type(answered["remote_port"]) is int
    assert all(type(block) is int for group in answered["remote_block_ids"] for block in group)
    assert type(answered["tp_size"]) is int


def test_any_host_is_taken_from_a_prefill_engine_whose_host_is_not_configured():
    pull_only = EngineSettings(url="http://p:1", role="prefill", engine_id="P0", modes=("pull",))
    answer = json.dumps({"kv_transfer_params": GOOD}).encode()
    assert params.read_answer(answer, pull_only) == GOOD
