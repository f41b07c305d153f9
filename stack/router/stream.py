"""Looks at an event stream just as much as it must, while its bytes pass through untouched.

Until the first token every event is parsed; from then on chunks are only counted and their end is kept, in which
the end of the stream shows: ``[DONE]``, an error event, usage. A line break inside JSON is escaped, so that a raw
one followed by ``data:`` is always the start of an event and never the model's text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TAIL = 8192  # bytes kept of the end of a stream
GIVE_UP = 1 << 20  # bytes without a whole event, after which the stream is taken to have begun
_DONE = re.compile(rb"\ndata: ?\[DONE\]")
_ERROR = re.compile(rb'\ndata: ?\{\s*"error"\s*:')
OTHER_CONTENT_FIELDS = ("reasoning", "reasoning_content", "tool_calls", "function_call", "refusal")
_CONTENT_FIELDS = ("content", *OTHER_CONTENT_FIELDS)


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """What the end of a stream says. ``usage`` as the engine sent it, when it did."""

    done: bool
    failed: bool
    usage: Mapping[str, Any] | None


class StreamScan:
    """Follows one event stream. :attr:`seeking` is true until the first token was seen."""

    __slots__ = ("_chat", "_pending", "_tail", "events", "seeking")

    def __init__(self, chat: bool) -> None:
        self._chat = chat
        self._pending = b""
        self._tail = bytearray(b"\n")
        self.events = 0
        self.seeking = True

    def follow(self, chunk: bytes) -> None:
        """Notes a chunk that goes through."""
        self.events += chunk.count(b"\n\n")
        tail = self._tail
        tail += chunk
        if len(tail) > 2 * _TAIL:
            del tail[:-_TAIL]

    def first_token_in(self, chunk: bytes) -> bool:
        """Tells whether the first token has come with this chunk; to be asked while :attr:`seeking`."""
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        if any(self._has_token(line) for line in lines) or len(self._pending) > GIVE_UP:
            self.seeking = False
            self._pending = b""
            return True
        return False

    def _has_token(self, line: bytes) -> bool:
        event = event_of(line)
        choices = event.get("choices") if event is not None else None
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return False
        if not self._chat or choices[0].get("finish_reason") is not None:
            return True
        delta = choices[0].get("delta")  # the first of a chat only names the role
        return isinstance(delta, dict) and any(delta.get(field) for field in _CONTENT_FIELDS)

    def end(self) -> StreamEnd:
        """Reads the end of the stream; to be called once everything has passed."""
        return StreamEnd(
            done=_DONE.search(self._tail) is not None,
            failed=_ERROR.search(self._tail) is not None,
            usage=self._usage(),
        )

    def _usage(self) -> Mapping[str, Any] | None:
        for line in reversed(bytes(self._tail).split(b"\n")):
            if b'"usage"' in line and (usage := usage_of(event_of(line))) is not None:
                return usage
        return None


def event_of(line: bytes) -> dict[str, Any] | None:
    """Returns the JSON object in one ``data:`` line of an event stream, if there is one."""
    if not line.startswith(b"data:"):
        return None
    try:
        event = json.loads(line[5:])
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def usage_of(answer: object) -> Mapping[str, Any] | None:
    """Returns the ``usage`` object of a parsed answer or event, if it has one."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    return usage if isinstance(usage, dict) else None
