"""Asks D what it still keeps of a finished request, and checks the answer before P is told to read there.

D is the authority: what it no longer names was read, expired, or went with an earlier life of the engine. A wrong
block number would have P read another request's memory, so that nothing is passed on that was not checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from connector import names
from stack.router.params import Params, are_block_ids, is_count, is_text


class Fetch(Protocol):
    """A short GET: status and body, or ``None`` when there was no answer within ``timeout_s`` seconds."""

    async def __call__(self, url: str, timeout_s: float, /) -> tuple[int, bytes] | None: ...


@dataclass(frozen=True, slots=True)
class Kept:
    """What D keeps of one request: ``params`` for P, ``tokens``, and for how many seconds more by D's clock."""

    params: Params
    tokens: int
    expires_in_s: float


async def ask(fetch: Fetch, kept_url: str, request_id: str, timeout_s: float) -> Kept | None:
    """Returns what the engine behind ``kept_url`` keeps of a request; ``None`` when nothing, or nothing usable."""
    answer = await fetch(f"{kept_url}/kept/{request_id}", timeout_s)
    return None if answer is None or answer[0] != 200 else read(answer[1])


def read(body: bytes) -> Kept | None:
    """Returns what an answer's body says: checked, and without what the router itself tells P."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or not isinstance(said.get("params"), dict):
        return None
    given, tokens, expires_in_s = said["params"], said.get("tokens"), said.get("expires_in_s")
    if not isinstance(tokens, int) or not is_count(tokens, 0) or not isinstance(expires_in_s, int | float):
        return None
    if not all(holds(given.get(field)) for field, holds in _FIELDS.items()):
        return None
    params = {field: value for field, value in given.items() if field not in _ROUTERS_OWN}
    return Kept(params, tokens, float(expires_in_s))


def only_release(params: Params) -> Params:
    """Returns ``params`` so that P reads nothing and tells D at once to free its blocks."""
    return {**params, "remote_num_tokens": 0, names.PARAM_TOKEN_MARKS: []}


def _are_marks(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(mark, list) and len(mark) == 2 and is_count(mark[0], 1) and is_text(mark[1]) for mark in value
    )


_ROUTERS_OWN = (
    "do_remote_prefill",
    "do_remote_decode",
    names.PARAM_MODE,
    names.PARAM_REQUEST_ID,
    names.PARAM_TRACEPARENT,
)
_FIELDS: dict[str, Callable[[Any], bool]] = {
    "remote_block_ids": are_block_ids,
    "remote_engine_id": is_text,
    "remote_request_id": is_text,
    "remote_host": is_text,
    "remote_port": lambda value: is_count(value, 1, 65535),
    "tp_size": lambda value: is_count(value, 1),
    "dcp_size": lambda value: value is None or is_count(value, 1),
    "pp_size": lambda value: value is None or is_count(value, 1),
    "remote_num_tokens": lambda value: is_count(value, 0),
    "remote_blocks_expiry_time": lambda value: value is None or type(value) in (int, float),
    names.PARAM_TOKEN_MARKS: _are_marks,
}
