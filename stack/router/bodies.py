"""Request bodies: what the client sent, what each leg is sent, and what KV transfer cannot serve.

D's leg keeps the client's body, so that nothing about the answer depends on the router; P's leg changes just what
makes it end after the prompt. Fields that steer KV transfer belong to the router: a client's own are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from connector import names
from stack.router.errors import BadRequestError

Body = dict[str, Any]

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
KV_PARAMS = "kv_transfer_params"
CONVERSATION = "conversation_id"
_TRANSFER_FIELDS = (KV_PARAMS, "ec_transfer_params")
_EXTRA_ARGS = "vllm_xargs"  # the engine merges these into the same place as kv_transfer_params


def parse(raw: bytes) -> Body:
    """Returns the client's JSON object; raises ``BadRequestError`` for anything else."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise BadRequestError("the request body is not valid JSON", code="invalid_json") from None
    if not isinstance(body, dict):
        raise BadRequestError("the request body must be a JSON object", code="invalid_json")
    return body


def encode(body: Mapping[str, Any]) -> bytes:
    """Returns ``body`` as JSON; escapes keep even lone surrogates as the client sent them."""
    return json.dumps(body, separators=(",", ":")).encode()


def drop_transfer_fields(body: Body) -> list[str]:
    """Removes the client's own transfer parameters from ``body``, wherever the engine would take them from.

    Returns the names of the fields that were removed.
    """
    dropped = [field for field in _TRANSFER_FIELDS if field in body]
    for field in dropped:
        del body[field]
    extra = body.get(_EXTRA_ARGS)
    if isinstance(extra, dict):
        hidden = [field for field in _TRANSFER_FIELDS if field in extra]
        if hidden:
            body[_EXTRA_ARGS] = {key: value for key, value in extra.items() if key not in hidden}
            dropped += [f"{_EXTRA_ARGS}.{field}" for field in hidden]
    return dropped


def plain_reason(path: str, body: Body) -> str | None:
    """Says which property of ``body`` KV transfer cannot serve, or ``None``.

    Several sequences or prompts share one request id, under which P and D would pair only one; prompt log
    probabilities need the prompt computed where they are asked for; embeddings have no token count to transfer.
    """
    if body.get("n") not in (None, 1):
        return "n"
    if body.get("best_of") not in (None, 1):
        return "best_of"
    if body.get("use_beam_search"):
        return "beam_search"
    if body.get("prompt_logprobs") is not None:
        return "prompt_logprobs"
    if path == COMPLETIONS_PATH:
        if body.get("echo"):
            return "echo"
        if body.get("prompt_embeds") is not None:
            return "prompt_embeds"
        if _is_batch(body.get("prompt")):
            return "batch"
    return None


def _is_batch(prompt: object) -> bool:
    return isinstance(prompt, list) and any(not isinstance(part, int) for part in prompt)


def prefill_body(path: str, body: Body, params: Mapping[str, Any]) -> Body:
    """Returns P's body: one token, not streamed, otherwise the client's."""
    leg = {key: value for key, value in body.items() if key not in ("stream_options", "n", "best_of")}
    leg["stream"] = False
    leg["max_tokens"] = 1
    if path == CHAT_PATH or "max_completion_tokens" in body:
        leg["max_completion_tokens"] = 1
    if _above_one(body.get("min_tokens")):
        leg["min_tokens"] = 1
    leg[KV_PARAMS] = dict(params)
    return leg


def _above_one(value: object) -> bool:
    # The engine also takes numbers written as strings.
    try:
        return float(value) > 1  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def decode_body(body: Body, params: Mapping[str, Any] | None) -> Body:
    """Returns D's body: the client's, with transfer parameters unless D computes the prompt itself."""
    return dict(body) if params is None else {**body, KV_PARAMS: dict(params)}


def estimated_prompt_tokens(body: Body, raw_size: int) -> int:
    """Estimates the prompt's tokens: exact for token ids, else the body's bytes by four."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    if isinstance(prompt, str):
        return len(prompt) // 4 + 1
    return raw_size // 4 + 1


def model_of(body: Body, default: str | None) -> str | None:
    """Returns the model's name for telemetry, cut to a sane length."""
    model = body.get("model")
    return model[:128] if isinstance(model, str) and model else default


def operation_of(path: str) -> str:
    """Returns ``gen_ai.operation.name`` of an endpoint."""
    return "chat" if path == CHAT_PATH else "text_completion"


def conversation_of(body: Body, headers: Mapping[bytes, bytes]) -> str | None:
    """Returns the conversation's id from the body or the header.

    The body's field is left where it is: engines ignore fields that they do not know.
    """
    given = body.get(CONVERSATION)
    if isinstance(given, str) and given:
        return given
    header = headers.get(names.HEADER_CONVERSATION.encode())
    return header.decode("latin-1") if header else None
