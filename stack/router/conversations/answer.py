"""Reads an answer's text into a digest as it passes, and says when it has ended as one that can be continued.

Only plain text is followed. With tool calls, reasoning or a refusal in it, what a client will send back as history
is not what was generated, or is not known: then the answer counts for nothing and its prompt can still be continued.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stack.router.conversations.history import Digest, History
from stack.router.stream import GIVE_UP, OTHER_CONTENT_FIELDS, event_of

FINISHED = ("stop", "length", "tool_calls", "function_call")  # for D: stopped or at its length; it keeps no others


ANSWER_UNFINISHED = "answer_unfinished"


class AnswerText:
    """The text of one answer. ``problem``: a bounded reason why it cannot be continued; ``done``: all of it came."""

    __slots__ = ("_characters", "_chat", "_digest", "_finished", "_history", "_pending", "_plain", "done", "problem")

    def __init__(self, history: History, *, chat: bool) -> None:
        self._history = history
        self._chat = chat
        self._digest: Digest = history.answer_digest()
        self._characters = 0
        self._plain = True
        self._pending = b""
        self._finished = False
        self.done = False
        self.problem: str | None = None

    @property
    def finished(self) -> bool:
        """Whether the answer's last token has come, though the stream may not have said ``[DONE]`` yet."""
        return self._finished and self.problem is None

    def covered(self) -> tuple[int, bytes]:
        """Returns length and digest of the history with this answer in it, or without one that is not plain text."""
        if self._plain:
            return self._history.with_answer(self._digest, self._characters)
        prompt = self._history.digest(self._history.length)
        assert prompt is not None
        return self._history.length, prompt

    def follow(self, chunk: bytes) -> bool:
        """Reads the next bytes of an event stream; tells whether they end an answer that can be continued."""
        if self.problem is not None or self.done:
            return False
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._pending) > GIVE_UP:
            self.problem, self._pending = "answer_unreadable", b""
        return self.done

    def whole(self, body: bytes) -> bool:
        """Reads an answer that is not streamed; tells whether it can be continued."""
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        self._event(answer, "message")
        self._end()
        return self.done

    def _line(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        if line[5:].strip() == b"[DONE]":
            self._end()
        elif self.problem is None:
            self._event(event_of(line), "delta")

    def _event(self, event: object, part: str) -> None:
        choices = event.get("choices") if isinstance(event, dict) else None
        if not isinstance(choices, list):
            self.problem = "answer_unreadable"  # an error of the engine, too
            return
        for choice in choices:
            self._choice(choice, part)

    def _choice(self, choice: object, part: str) -> None:
        if not isinstance(choice, dict) or choice.get("index") not in (None, 0):
            self.problem = "several_choices"
            return
        content = choice.get(part) if self._chat else choice
        if not isinstance(content, Mapping):
            self.problem = "answer_unreadable"
            return
        if self._chat and any(content.get(field) for field in OTHER_CONTENT_FIELDS):
            self._plain = False
        self._text(content.get("content" if self._chat else "text"))
        finish = choice.get("finish_reason")
        if finish is not None:
            self._finished = True
            if finish not in FINISHED:
                self.problem = "finish_reason"

    def _text(self, text: Any) -> None:
        if isinstance(text, str):
            self._characters += len(text)
            self._digest.update(text.encode("utf-8", "surrogatepass"))
        elif text is not None:
            self._plain = False

    def _end(self) -> None:
        if self.problem is None and not self._finished:
            self.problem = ANSWER_UNFINISHED
        self.done = self.problem is None
