"""P's side of mode reuse: judges what the router offers of D's kept blocks before vLLM's scheduler sees it.

Blocks are taken only as far as a token mark proves that their tokens are this prompt's own. What cannot be used is
taken out of the request's parameters, so that upstream computes the prompt; a request never fails because of an offer.
Called on the engine core thread only.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from connector import names
from connector.token_marks import matching_tokens

logger = logging.getLogger(__name__)

MAX_REMEMBERED = 10_000  # offers, so that none is read twice


class Offer(NamedTuple):
    """What became of an offer: one of ``names.REUSE_OUTCOMES``, tokens offered, tokens that are the prompt's own."""

    outcome: str
    tokens: int
    matched_tokens: int


class OfferDesk:
    """``block_size`` is this engine's, in tokens; ``groups`` the number of KV cache groups that are transferred."""

    def __init__(self, block_size: int, groups: int) -> None:
        self._block_size = block_size
        self._groups = groups
        self._used: dict[tuple[str, str], None] = {}

    def judge(self, request: Any) -> Offer | None:
        """Cuts the offer in the request's parameters down to what may be read; ``None`` when there was none."""
        params = request.kv_transfer_params
        if not params.get("remote_block_ids"):
            return None
        try:
            return self._judge(request, params)
        except Exception:
            logger.exception("an offer of reuse could not be judged; request %s is computed", request.request_id)
            withdraw(params)
            return None

    def _judge(self, request: Any, params: dict[str, Any]) -> Offer | None:
        if not self._well_formed(params):
            logger.warning("a malformed offer of reuse is ignored; request %s is computed", request.request_id)
            withdraw(params)
            return None
        offered = params["remote_num_tokens"]
        if not offered:
            return None  # the router wants no more than that D hears of it and frees the blocks
        if not self._first_use(params["remote_engine_id"], params["remote_request_id"]):
            withdraw(params)  # D freed the blocks when they were read: they may hold another request's KV by now
            return Offer(names.REUSE_GONE, offered, 0)
        matched = self._matched(request, params)
        # 0 tokens: upstream reads nothing and only tells D, which then frees the blocks.
        params["remote_num_tokens"] = matched
        if matched:
            params["remote_block_ids"] = cut(params["remote_block_ids"], matched, self._block_size)
        return Offer(names.REUSE_HIT if matched else names.REUSE_EDITED, offered, matched)

    def _matched(self, request: Any, params: dict[str, Any]) -> int:
        if not text_only(request) or params.get(names.PARAM_BLOCK_SIZE) != self._block_size:
            return 0
        marks = params.get(names.PARAM_TOKEN_MARKS)
        matched = matching_tokens(marks, request.prompt_token_ids, params["remote_num_tokens"])
        # Upstream pairs local and remote blocks from the end: a group that is too short would be read at wrong places.
        held = self._block_size * min(len(group) for group in params["remote_block_ids"])
        return matched if matched <= held else 0

    def _first_use(self, engine: str, request: str) -> bool:
        if (engine, request) in self._used:
            return False
        self._used[engine, request] = None
        if len(self._used) > MAX_REMEMBERED:
            del self._used[next(iter(self._used))]
        return True

    def _well_formed(self, params: dict[str, Any]) -> bool:
        groups = params["remote_block_ids"]
        return (
            isinstance(groups, list)
            and len(groups) == self._groups
            and all(isinstance(group, list) and all(_is_count(block) for block in group) for group in groups)
            and all(_is_count(params.get(key)) for key in ("remote_port", "remote_num_tokens"))
            and all(_is_count(params.get(key, 1)) and params.get(key, 1) for key in ("tp_size", "dcp_size", "pp_size"))
            and all(
                isinstance(params.get(key), str) and params[key]
                for key in ("remote_engine_id", "remote_request_id", "remote_host")
            )
            and isinstance(params.get("remote_blocks_expiry_time"), float | int | None)
        )


def withdraw(params: dict[str, Any]) -> None:
    """Takes an offer out of a request's parameters: upstream then computes the prompt and tells nobody."""
    params["remote_block_ids"] = None
    params["remote_num_tokens"] = 0


def cut(block_ids: Any, tokens: int, block_size: int) -> list[list[int]]:
    """The leading blocks of every group that hold the first ``tokens`` tokens."""
    blocks = -(-tokens // block_size)
    return [list(group[:blocks]) for group in block_ids]


def text_only(request: Any) -> bool:
    """Whether token ids say everything about a request's KV: no images, no adapter, no cache of its own."""
    return (
        request.prompt_token_ids is not None
        and not request.mm_features
        and request.lora_request is None
        and request.cache_salt is None
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
