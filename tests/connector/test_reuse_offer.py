"""What P makes of an offer: cut to what is proven, used once, and withdrawn when it is not understood."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from connector import names
from connector.reuse_offer import Offer, OfferDesk, cut
from connector.token_marks import marks_of

BLOCK = 16
EARLIER = list(range(100, 180))  # 64 of the prompt, 16 of the answer


@pytest.fixture
def desk() -> OfferDesk:
    return OfferDesk(BLOCK, groups=1)


def params(**changes: Any) -> dict[str, Any]:
    return {
        "do_remote_decode": True,
        "remote_block_ids": [[9, 8, 7, 6, 5]],
        "remote_engine_id": "d",
        "remote_request_id": "r-1",
        "remote_host": "h",
        "remote_port": 5611,
        "tp_size": 1,
        "remote_num_tokens": 80,
        "remote_blocks_expiry_time": 12.5,
        names.PARAM_TOKEN_MARKS: marks_of(EARLIER, (64, 80)),
        names.PARAM_BLOCK_SIZE: BLOCK,
        **changes,
    }


def request(prompt: Any, offer: dict[str, Any], **changes: Any) -> Any:
    plain = {"mm_features": [], "lora_request": None, "cache_salt": None}
    return SimpleNamespace(request_id="p-1", prompt_token_ids=prompt, kv_transfer_params=offer, **{**plain, **changes})


@pytest.mark.parametrize(
    ("prompt", "matched", "blocks"),
    [
        ([*EARLIER, 1, 2], 80, [9, 8, 7, 6, 5]),
        (EARLIER, 80, [9, 8, 7, 6, 5]),
        ([*EARLIER[:70], 1, 2, 3], 64, [9, 8, 7, 6]),  # another answer
        (EARLIER[:64], 64, [9, 8, 7, 6]),
    ],
)
def test_blocks_are_taken_as_far_as_the_prompts_tokens_are_theirs(
    desk: OfferDesk, prompt: list[int], matched: int, blocks: list[int]
) -> None:
    asked = request(prompt, params())
    assert desk.judge(asked) == Offer(names.REUSE_HIT, 80, matched)
    assert asked.kv_transfer_params["remote_num_tokens"] == matched
    assert asked.kv_transfer_params["remote_block_ids"] == [blocks]


def test_a_mark_within_a_block_takes_the_block() -> None:
    assert cut([[1, 2, 3]], 17, 16) == [[1, 2]]


@pytest.mark.parametrize(
    ("prompt", "changes", "kind"),
    [
        ([1, *EARLIER[1:]], {}, {}),  # edited
        (EARLIER[:63], {}, {}),  # shorter than any mark
        (EARLIER, {names.PARAM_TOKEN_MARKS: None}, {}),
        (EARLIER, {names.PARAM_TOKEN_MARKS: [[80, "0" * 16]]}, {}),
        (EARLIER, {names.PARAM_BLOCK_SIZE: 32}, {}),  # D's blocks are not P's
        (EARLIER, {names.PARAM_BLOCK_SIZE: None}, {}),
        (EARLIER, {"remote_block_ids": [[9, 8, 7, 6]]}, {}),  # too few for what they are said to hold
        (EARLIER, {}, {"mm_features": [object()]}),
        (EARLIER, {}, {"lora_request": object()}),
        (EARLIER, {}, {"cache_salt": "s"}),
        (None, {}, {}),  # embeddings
    ],
)
def test_what_is_not_proven_is_only_told_to_d(desk: OfferDesk, prompt: Any, changes: Any, kind: Any) -> None:
    asked = request(prompt, params(**changes), **kind)
    assert desk.judge(asked) == Offer(names.REUSE_EDITED, 80, 0)
    assert asked.kv_transfer_params["remote_num_tokens"] == 0
    assert asked.kv_transfer_params["remote_block_ids"], "so that upstream notifies D"


def test_an_offer_of_no_tokens_is_a_release(desk: OfferDesk) -> None:
    asked = request(EARLIER, params(remote_num_tokens=0))
    assert desk.judge(asked) is None
    assert asked.kv_transfer_params["remote_block_ids"]


def test_an_offer_is_used_once(desk: OfferDesk) -> None:
    assert desk.judge(request(EARLIER, params())) == Offer(names.REUSE_HIT, 80, 80)
    again = request(EARLIER, params())
    assert desk.judge(again) == Offer(names.REUSE_GONE, 80, 0)
    assert not again.kv_transfer_params["remote_block_ids"], "D has freed them, and is not told twice"
    assert desk.judge(request(EARLIER, params(remote_request_id="r-2"))) == Offer(names.REUSE_HIT, 80, 80)
    assert desk.judge(request(EARLIER, params(remote_engine_id="d-again"))) == Offer(names.REUSE_HIT, 80, 80)


def test_what_is_remembered_is_bounded(desk: OfferDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.reuse_offer.MAX_REMEMBERED", 2)
    for number in range(5):
        desk.judge(request(EARLIER, params(remote_request_id=f"r-{number}")))
    assert len(desk._used) == 2


@pytest.mark.parametrize("nothing", [{}, {"remote_block_ids": None}, {"remote_block_ids": []}])
def test_a_first_turn_offers_nothing(desk: OfferDesk, nothing: dict[str, Any]) -> None:
    assert desk.judge(request(EARLIER, nothing)) is None


MALFORMED: list[dict[str, Any]] = [
    {"remote_block_ids": "x"},
    {"remote_block_ids": [["x"]]},
    {"remote_block_ids": [[-1]]},
    {"remote_block_ids": [[True]]},
    {"remote_block_ids": [7]},
    {"remote_block_ids": [[1], [2]]},  # another number of cache groups
    {"remote_num_tokens": None},
    {"remote_num_tokens": -1},
    {"remote_num_tokens": "80"},
    {"remote_port": None},
    {"remote_host": ""},
    {"remote_host": 7},
    {"remote_engine_id": None},
    {"remote_request_id": ["r"]},
    {"tp_size": 0},
    {"pp_size": "1"},
    {"remote_blocks_expiry_time": "soon"},
]


@pytest.mark.parametrize("changes", MALFORMED, ids=str)
def test_what_is_malformed_is_withdrawn(desk: OfferDesk, changes: dict[str, Any]) -> None:
    asked = request(EARLIER, params(**changes))
    assert desk.judge(asked) is None
    assert not asked.kv_transfer_params["remote_block_ids"]
    assert asked.kv_transfer_params["remote_num_tokens"] == 0


def test_a_fault_of_the_desk_is_no_fault_of_the_request(desk: OfferDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.reuse_offer.matching_tokens", None)
    asked = request(EARLIER, params())
    assert desk.judge(asked) is None
    assert not asked.kv_transfer_params["remote_block_ids"]
