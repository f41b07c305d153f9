"""What a conversation's KV cache was computed from, as a digest: to tell whether the next turn goes on from it.

This is a first, cheap filter, on what the client wrote. Two equal texts need not be the same tokens (a chat template
may rewrite old turns; a boundary between two texts may be tokenised otherwise), so that P's connector compares
digests of the tokens themselves before it reads a block. The filter saves P that work, and tells *edited* from a hit
where tokens cannot tell: adapters, cache salts and images change the KV cache behind equal tokens. Whatever is not
plain text is therefore not followed at all. Digests are computed as the text passes; nothing of it is kept.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Protocol

from stack.router.bodies import CHAT_PATH, Body

DIGEST_BYTES = 16
# What shapes a prompt, or its KV cache, beside the text itself.
_SHAPING = (
    "model",
    "cache_salt",
    "tools",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "add_special_tokens",
    "truncate_prompt_tokens",
    "mm_processor_kwargs",
)
_UNFOLLOWED_CHAT = ("continue_final_message", "echo")  # the answer is then no message of its own
_ASSISTANT = {"role": "assistant"}


class Digest(Protocol):
    """A hash from :mod:`hashlib`."""

    def update(self, data: bytes, /) -> None: ...
    def copy(self) -> Digest: ...
    def digest(self) -> bytes: ...


class History(Protocol):
    """The history that one request carries. ``length`` is in the units of its kind: see the classes."""

    length: int

    def digest(self, length: int) -> bytes | None:
        """Returns the digest of the first ``length`` units; ``None`` when there are not so many."""
        ...

    def answer_digest(self) -> Digest:
        """Returns a new hash, to be fed with the answer's text as UTF-8."""
        ...

    def with_answer(self, answer: Digest, characters: int) -> tuple[int, bytes]:
        """Returns length and digest of this history and the answer that ``answer`` was fed with."""
        ...


def history_of(path: str, body: Body) -> History | None:
    """Returns the history in a client's request; ``None`` for one that cannot be followed."""
    start = hashlib.sha256(_canonical({field: body[field] for field in _SHAPING if body.get(field) is not None}))
    if path == CHAT_PATH:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or any(body.get(field) for field in _UNFOLLOWED_CHAT):
            return None
        digests = [_message_digest(message) for message in messages]
        return None if None in digests else ChatHistory(start, [digest for digest in digests if digest])
    prompt = body.get("prompt")
    if isinstance(prompt, str) and not body.get("suffix"):
        return TextHistory(start, prompt)
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return TokenHistory(start, prompt)
    return None


class TextHistory:
    """A text prompt. Units are characters; the answer's text continues it."""

    def __init__(self, start: Digest, prompt: str) -> None:
        self._start = start
        self._prompt = prompt
        self.length = len(prompt)

    def digest(self, length: int) -> bytes | None:
        return None if length > self.length else _over(self._start, _utf8(self._prompt[:length]))

    def answer_digest(self) -> Digest:
        whole = self._start.copy()
        whole.update(_utf8(self._prompt))
        return whole

    def with_answer(self, answer: Digest, characters: int) -> tuple[int, bytes]:
        return self.length + characters, answer.digest()[:DIGEST_BYTES]


class TokenHistory:
    """A prompt of token ids. Units are tokens; those of the answer are not in it, so that it covers the prompt only."""

    def __init__(self, start: Digest, tokens: list[int]) -> None:
        self._start = start
        self._tokens = tokens
        self.length = len(tokens)

    def digest(self, length: int) -> bytes | None:
        return None if length > self.length else _over(self._start, _canonical(self._tokens[:length]))

    def answer_digest(self) -> Digest:
        return hashlib.sha256()

    def with_answer(self, answer: Digest, characters: int) -> tuple[int, bytes]:
        whole = self.digest(self.length)
        assert whole is not None
        return self.length, whole


class ChatHistory:
    """Messages of a chat, by their digests. Units are messages; the answer is one more, the assistant's."""

    def __init__(self, start: Digest, messages: list[bytes]) -> None:
        self._start = start
        self._messages = messages
        self.length = len(messages)

    def digest(self, length: int) -> bytes | None:
        return None if length > self.length else _over(self._start, b"".join(self._messages[:length]))

    def answer_digest(self) -> Digest:
        return _message_start(_ASSISTANT)

    def with_answer(self, answer: Digest, characters: int) -> tuple[int, bytes]:
        return self.length + 1, _over(self._start, b"".join([*self._messages, answer.digest()]))


def _message_digest(message: object) -> bytes | None:
    """Returns the digest of one message, however a client spells it; ``None`` when there is more than text in it.

    Clients send an assistant's message back as they got it, with its empty fields, or with role and content alone.
    """
    if not isinstance(message, dict):
        return None
    text = _text(message.get("content"))
    if text is None:
        return None
    rest = {key: value for key, value in message.items() if key != "content" and value not in (None, [], "")}
    whole = _message_start(rest)
    whole.update(_utf8(text))
    return whole.digest()


def _message_start(rest: dict[str, Any]) -> Digest:
    # JSON escapes every control character: a raw NUL ends it without doubt.
    return hashlib.sha256(_canonical(rest) + b"\0")


def _text(content: object) -> str | None:
    if content is None:  # of an assistant that only called tools
        return ""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        return None
    return texts[0] if len(texts) == 1 else json.dumps(texts)


def _over(start: Digest, data: bytes) -> bytes:
    whole = start.copy()
    whole.update(data)
    return whole.digest()[:DIGEST_BYTES]


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
