"""``kv_transfer_params``: what the router sends with each leg, and the check of what P answers.

P's answer names memory on P that D will read. A wrong one can stall or crash D, so that nothing is passed on that
was not checked field by field; whoever gets a :class:`Refusal` lets D compute the prompt alone.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from connector import names
from stack.router.bodies import KV_PARAMS
from stack.router.settings import EngineSettings

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why P's parameters cannot be used: a bounded ``reason`` for telemetry."""

    reason: str


def for_prefill(mode: str, request_id: str, traceparent: str | None, kept: Params | None = None) -> Params:
    """Returns the parameters of P's leg; ``kept`` is what D keeps of the turn before (reuse)."""
    own = {"do_remote_decode": True, "do_remote_prefill": False, **_common(mode, request_id, traceparent)}
    return {**(kept or {}), **own}


def for_push_decode(prefill: EngineSettings, request_id: str, traceparent: str | None) -> Params:
    """Returns the parameters of D's leg in push: where P can be reached, and nothing about its blocks yet."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": prefill.engine_id,
        "remote_host": prefill.side_channel_host,
        "remote_port": prefill.side_channel_port,
        "tp_size": prefill.tp_size,
        "pp_size": prefill.pp_size,
        "remote_request_id": request_id,
        "remote_block_ids": None,
        **_common(names.MODE_PUSH, request_id, traceparent),
    }


def for_pull_decode(
    mode: str, answered: Params, request_id: str, traceparent: str | None, *, followed: bool = True
) -> Params:
    """Returns the parameters of D's leg in pull and reuse: what P answered, under D's own span.

    In reuse D need not keep the blocks of a request that is not ``followed``: no next turn will find them.
    """
    kept = {key: value for key, value in answered.items() if key != names.PARAM_TRACEPARENT}
    keep = {} if followed or mode != names.MODE_REUSE else {names.PARAM_KEEP: False}
    return {**kept, **_common(mode, request_id, traceparent), **keep}


def _common(mode: str, request_id: str, traceparent: str | None) -> Params:
    shared = {names.PARAM_MODE: mode, names.PARAM_REQUEST_ID: request_id}
    return {**shared, names.PARAM_TRACEPARENT: traceparent} if traceparent else shared


def read_answer(answer: bytes, prefill: EngineSettings) -> Params | Refusal:
    """Returns the transfer parameters in P's response body (pull and reuse), or why they cannot be used."""
    try:
        body = json.loads(answer)
    except (ValueError, RecursionError):
        return Refusal("prefill_answer_unreadable")
    params = body.get(KV_PARAMS) if isinstance(body, dict) else None
    if params is None:
        return Refusal("kv_params_missing")
    if not isinstance(params, dict):
        return Refusal("kv_params_type")
    for field, holds in _checks(prefill).items():
        if not holds(params.get(field)):
            return Refusal(f"kv_params_{field}")
    return params


def _checks(prefill: EngineSettings) -> dict[str, Callable[[Any], bool]]:
    """Returns a predicate a field; a missing field is checked as ``None``."""
    host = prefill.side_channel_host
    return {
        "do_remote_prefill": lambda value: value is True,
        "do_remote_decode": lambda value: value is False,
        "remote_engine_id": lambda value: value == prefill.engine_id,
        "remote_request_id": is_text,
        "remote_host": lambda value: is_text(value) and is_same_host(value, host),
        "remote_port": lambda value: is_count(value, 1, 65535),
        "remote_block_ids": are_block_ids,
        "tp_size": lambda value: is_count(value, 1),
        "pp_size": lambda value: value is None or is_count(value, 1),
        "dcp_size": lambda value: value is None or is_count(value, 1),
        "remote_num_tokens": lambda value: value is None or is_count(value, 0),
        "remote_blocks_expiry_time": lambda value: value is None or type(value) in (int, float),
        names.PARAM_MODE: lambda value: value in (None, names.MODE_PULL, names.MODE_REUSE),
    }


def is_same_host(answered: str, configured: str | None) -> bool:
    """Holds unless P names another host than the configured one.

    NIXL listens on addresses only: a P that is configured by name answers with what the name means on its own host.
    """
    if configured is None or answered == configured:
        return True
    return is_address(answered) and not is_address(configured)


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_text(value: object) -> bool:
    """Holds for a short printable word."""
    return isinstance(value, str) and 0 < len(value) <= 512 and value.isprintable() and " " not in value


def is_count(value: object, least: int, most: int = 2**31 - 1) -> bool:
    """Holds for a whole number from ``least`` to ``most``."""
    return type(value) is int and least <= value <= most  # bool is an int, and no count


def are_block_ids(value: object) -> bool:
    """Holds for a list with one list of block numbers for each cache group, at least one of them not empty."""
    if not isinstance(value, list) or not all(isinstance(group, list) for group in value):
        return False
    return any(value) and all(is_count(block, 0) for group in value for block in group)
