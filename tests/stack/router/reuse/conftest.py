"""Clients that hold conversations in mode reuse, and what P and the spans say about each turn."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from connector import names
from stack.router.bodies import CHAT_PATH, COMPLETIONS_PATH
from stack.router.stub_engine import StubEngine

REUSE = {names.HEADER_MODE: names.MODE_REUSE}


@pytest.fixture
async def router(start, reusing_prefill, reusing_decode, clock):
    async with start(reusing_prefill, reusing_decode, clock=clock) as running:
        yield running


@pytest.fixture
def prefill(reusing_prefill):
    return reusing_prefill


@pytest.fixture
def decode(reusing_decode):
    return reusing_decode


@dataclass
class Conversation:
    """A client that sends back what it was answered, as clients do."""

    router: Any
    conversation_id: str = "c1"
    path: str = COMPLETIONS_PATH
    stream: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    prompt: str = "The first question."
    messages: list[dict[str, Any]] = field(default_factory=lambda: [{"role": "user", "content": "The first question."}])

    def body(self) -> dict[str, Any]:
        said = {"messages": self.messages} if self.path == CHAT_PATH else {"prompt": self.prompt}
        return {**said, "stream": self.stream, "conversation_id": self.conversation_id}

    async def turn(self, **more: Any) -> Any:
        """Sends the history and appends the answer and a next question to it."""
        headers = {**REUSE, **self.headers}
        response = await self.router.client.post(self.path, json={**self.body(), **more}, headers=headers)
        assert response.status_code == 200, response.text
        answer = said(response.content, self.path, self.stream)
        self.prompt += answer + " And then?"
        self.messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
        return response

    async def remembered(self) -> None:
        """Returns when the router has stored what there is to store of all turns."""
        await asyncio.gather(*self.router.app.generation._conversations._tasks)


def said(content: bytes, path: str, stream: bool) -> str:
    events = [json.loads(line[6:]) for line in content.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for event in (events if stream else [json.loads(content)]) for choice in event["choices"]]
    if path == COMPLETIONS_PATH:
        return "".join(choice["text"] for choice in choices)
    return "".join(choice["delta" if stream else "message"]["content"] for choice in choices)


async def lookups_of(router: Any, turns: int) -> list[str]:
    """Returns what the span of each lookup says, in their order."""
    spans = [span for span in await router.spans(server=turns) if span.name == names.SPAN_REUSE_LOOKUP]
    return [span.attributes[names.ATTR_REUSE_OUTCOME] for span in sorted(spans, key=lambda span: span.start_time)]


def offers_to(prefill: StubEngine) -> list[str | None]:
    """Returns the router's request id of the turn that each of P's legs was offered, or told to release."""
    params = [request.body["kv_transfer_params"] for request in prefill.requests]
    ids = [each.get("remote_request_id") for each in params]
    return [None if rid is None else rid.removeprefix("cmpl-").removesuffix("-0-d") for rid in ids]


def rid_of(response: Any) -> str:
    return response.headers[names.HEADER_REQUEST_ID]


@pytest.fixture
def conversation() -> type[Conversation]:
    return Conversation


@pytest.fixture
def lookups() -> Any:
    return lookups_of


@pytest.fixture
def offers() -> Any:
    return offers_to


@pytest.fixture
def rid() -> Any:
    return rid_of
