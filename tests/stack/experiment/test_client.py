"""One measured request against a real HTTP server that says exactly what a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from stack.experiment.client import Answer, RequestError, completion_body, new_session, stream

DONE = "data: [DONE]\n\n"
USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 64, "completion_tokens": 3}}\n\n'


def chunk(text: str) -> str:
    return "data: " + json.dumps({"choices": [{"text": text}]}) + "\n\n"


class Server:
    """Answers every request with ``status`` and ``pieces``; a ``None`` among them closes the connection there."""

    def __init__(self) -> None:
        self.status = 200
        self.pieces: list[str | None] = []
        self.heads: list[str] = []
        self.url = ""
        self.waits: list[asyncio.Event] = []
        self.reached = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        await reader.readexactly(int(head.lower().split("content-length:")[1].split("\r\n")[0]))
        writer.write(f"HTTP/1.1 {self.status} X\r\nconnection: close\r\nX-Kvpath-Trace-Id: abc\r\n".encode())
        if None in self.pieces:
            writer.write(b"content-length: 99999\r\n")
        writer.write(b"\r\n")
        for number, piece in enumerate(self.pieces):
            if number < len(self.waits):
                self.reached.set()
                await self.waits[number].wait()
            if piece is not None:
                writer.write(piece.encode())
                await writer.drain()
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    answering = Server()
    listener = await asyncio.start_server(answering.serve, "127.0.0.1", 0)
    answering.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    yield answering
    listener.close()
    await listener.wait_closed()


async def ask(server: Server, timeout_s: float = 10.0) -> Answer:
    async with new_session(timeout_s) as session:
        return await stream(session, server.url, completion_body("m", "p", 3), {"x-kvpath-mode": "pull"})


async def test_what_a_whole_answer_says(server):
    server.pieces = [": ping\n\n", chunk(" one"), chunk(""), chunk(" two"), USAGE, DONE]
    answer = await ask(server)
    assert (answer.text, answer.chunks, answer.prompt_tokens, answer.output_tokens) == (" one two", 3, 64, 3)
    assert len(answer.gaps_ns) == 2
    assert answer.ttft_ns + sum(answer.gaps_ns) == answer.duration_ns
    assert answer.tpot_ns == sum(answer.gaps_ns) / 2
    assert answer.headers["x-kvpath-trace-id"] == "abc"


async def test_an_event_without_text_is_a_token_too(server):
    """The first bytes of a character that is not complete yet; the router takes it for the first token as well."""
    server.pieces = [chunk(""), DONE]
    answer = await ask(server)
    assert (answer.chunks, answer.text, answer.tpot_ns) == (1, "", None)


async def test_events_may_be_cut_anywhere(server):
    whole = chunk(" one") + chunk(" zwei ü") + USAGE + DONE
    server.pieces = [whole[i : i + 7] for i in range(0, len(whole), 7)]
    assert (await ask(server)).text == " one zwei ü"


async def test_the_first_token_is_timed_when_it_comes_and_not_at_the_end(server):
    first, rest = asyncio.Event(), asyncio.Event()
    server.waits = [first, rest]
    server.pieces = [chunk("a"), chunk("b") + DONE]
    asking = asyncio.create_task(ask(server))
    await server.reached.wait()
    first.set()
    loop = asyncio.get_running_loop()
    loop.call_later(0.05, rest.set)
    answer = await asking
    assert answer.gaps_ns[0] > 40_000_000 > answer.ttft_ns


async def test_every_request_is_traced_under_an_id_of_its_own(server):
    server.pieces = [chunk("a"), DONE]
    ids = [(await ask(server)).trace_id for _ in range(2)]
    sent = [head.split("traceparent: ")[1].split("\r\n")[0].split("-") for head in server.heads]
    assert [one[1] for one in sent] == ids
    assert len(set(ids)) == 2
    assert {(one[0], one[3]) for one in sent} == {("00", "01")}
    assert all("x-kvpath-mode: pull" in head for head in server.heads)


@pytest.mark.parametrize(
    ("status", "pieces", "kind", "message"),
    [
        (503, ['{"error": {"message": "no engine"}}'], "http_503", "HTTP 503: no engine"),
        (400, ["plain\ntext"], "http_400", "HTTP 400: plain text"),
        (400, ['["a list"]'], "http_400", "a list"),
        (200, [chunk("a"), 'data: {"error": {"message": "engine died"}}\n\n', DONE], "stream_error", "engine died"),
        (200, [chunk("a")], "broken_answer", "ended early after 1 tokens"),
        (200, [DONE], "broken_answer", "without a token"),
        (200, [], "broken_answer", "ended early after 0"),
        (200, ["data: {nonsense\n\n"], "broken_answer", "not JSON"),
        (200, [chunk("a"), None], "broken_answer", "Payload"),
    ],
)
async def test_what_is_no_whole_answer(server, status, pieces, kind, message):
    server.status, server.pieces = status, pieces
    with pytest.raises(RequestError, match=message) as caught:
        await ask(server)
    assert (caught.value.kind, len(caught.value.trace_id)) == (kind, 32)
    assert "\n" not in str(caught.value)


async def test_nobody_listening(server):
    server.url = "http://127.0.0.1:1"
    with pytest.raises(RequestError) as caught:
        await ask(server)
    assert (caught.value.kind, caught.value.status) == ("connect_error", 0)


async def test_an_answer_that_never_ends(server):
    server.waits = [asyncio.Event()]
    server.pieces = [chunk("a")]
    with pytest.raises(RequestError) as caught:
        await ask(server, timeout_s=0.05)
    assert caught.value.kind == "timeout"
    server.waits[0].set()
