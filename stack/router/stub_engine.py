"""A stand-in for an engine's HTTP side, for the router's tests and benchmark: no model, no KV cache.

It is a real server on a real socket, written on asyncio streams rather than on a framework, because the faults that
it plays (a reset, a stale connection, half an event) are below what a framework lets one do. What it answers is a
:class:`Reply`; the benchmark steers it by fields of the request instead: ``max_tokens`` and ``stub_interval_s``.

``python -m stack.router.stub_engine --role decode`` serves on a free port, which it prints.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from stack.router.bodies import CHAT_PATH, KV_PARAMS
from stack.router.settings import DECODE, DEFAULT_MODES, PREFILL, EngineSettings, Role
from stack.router.stub_kept import KEPT_PATH, StubKept

INTERVAL = "stub_interval_s"
TRACES_PATH = "/v1/traces"  # takes and forgets spans, so that the benchmark's router has somewhere to send them
DEFAULT_TOKENS = 4
LAST_TEXT = " end"  # of a stream; an answer of one token is this
_UNSET: Any = object()


@dataclass(slots=True)
class Received:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int  # number of the connection that brought it, from 1
    nth: int  # number of the request on that connection, from 1


@dataclass(slots=True)
class Reply:
    """What to answer. ``hold`` delays the head, ``hold_body`` the first byte of the body, until they are set.

    ``drop`` closes the connection without a byte, ``partial`` after these. ``cut_at`` resets it after so many events;
    ``pause_at`` waits there for ``resume``. ``raw`` replaces the event stream's bytes, one write an item.
    """

    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    kv_params: Any = _UNSET
    tokens: int | None = None
    hold: asyncio.Event | None = None
    hold_body: asyncio.Event | None = None
    drop: bool = False
    partial: bytes = b""
    cut_at: int | None = None
    pause_at: int | None = None
    resume: asyncio.Event | None = None
    raw: list[bytes] | None = None


class StubEngine:
    """One stub engine. ``requests`` holds every generation request received; ``in_flight`` those not answered yet."""

    def __init__(
        self, role: Role, engine_id: str, reply: Reply | None = None, modes: tuple[str, ...] = DEFAULT_MODES
    ) -> None:
        self.role: Role = role
        self.engine_id = engine_id
        self.modes = modes
        self.kept = StubKept(engine_id)
        self.reply = reply or Reply()
        self.choose_reply: Callable[[Received], Reply] = lambda _: self.reply
        self.health_status = 200
        self.requests: list[Received] = []
        self.in_flight = 0
        self.aborted = 0
        self.connections = 0
        self.port = 0
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def settings(self) -> EngineSettings:
        return EngineSettings(
            url=f"http://127.0.0.1:{self.port}",
            role=self.role,
            engine_id=self.engine_id,
            side_channel_host="127.0.0.1",
            side_channel_port=5600,
            modes=self.modes,
            kept_url=f"http://127.0.0.1:{self.port}" if self.role == DECODE else None,
        )

    async def __aenter__(self) -> StubEngine:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port or self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes the port and every connection, and forgets what was kept, as a killed engine would."""
        self.kept.free()
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    async def until(self, holds: Callable[[StubEngine], bool], timeout_s: float = 5.0) -> None:
        """Waits until ``holds`` is true of this engine."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: holds(self))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        number, nth = self.connections, 0
        try:
            while (request := await _read_request(reader, number, nth + 1)) is not None:
                nth += 1
                if not await self._serve(request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _serve(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers one request; returns whether the connection goes on."""
        if request.path == TRACES_PATH:
            _write_whole(writer, 200, b"")
            return True
        if request.method == "GET":
            if request.path == "/health":
                _write_whole(writer, self.health_status, b"{}")
            elif request.path.startswith(KEPT_PATH):
                _write_whole(writer, *await self.kept.answer(request.path))
            else:
                _write_whole(writer, 200, json.dumps({"object": "list", "data": [{"id": self.engine_id}]}).encode())
            await writer.drain()
            return True
        self.requests.append(request)
        self.in_flight += 1
        await self._notify()
        answering = asyncio.create_task(self._answer(request, self.choose_reply(request), writer))
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.aborted += 1
                return False
            return answering.result()
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
            self.in_flight -= 1
            await self._notify()

    async def _answer(self, request: Received, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        if reply.drop or reply.partial:
            writer.write(reply.partial)
            writer.close()
            return False
        if reply.hold is not None:
            await reply.hold.wait()
        if request.body.get("stream") and reply.status == 200 and reply.body is None:
            return await self._stream(request, reply, writer)
        if reply.status == 200 and self.role == DECODE:
            self.kept.finished(request.body.get(KV_PARAMS))
        body = reply.body if reply.body is not None else self._whole(request, reply)
        _write_whole(writer, reply.status, body, reply.headers)
        await writer.drain()
        return True

    def _whole(self, request: Received, reply: Reply) -> bytes:
        if reply.status != 200:
            return json.dumps({"error": {"message": f"stub {self.engine_id}", "code": reply.status}}).encode()
        tokens = _tokens(request, reply)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        text = " word" * tokens
        choice |= {"message": {"content": text}} if request.path == CHAT_PATH else {"text": text}
        usage = {"prompt_tokens": 7, "completion_tokens": tokens}
        answer: dict[str, Any] = {"id": "stub", "choices": [choice], "usage": usage}
        if self.role == PREFILL:
            answer[KV_PARAMS] = self.kv_params(request) if reply.kv_params is _UNSET else reply.kv_params
        return json.dumps(answer).encode()

    def kv_params(self, request: Received) -> dict[str, Any]:
        """Returns what a prefill engine answers after a pull's prefill."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1, 2, 3]],
            "remote_engine_id": self.engine_id,
            "remote_request_id": f"cmpl-{request.headers.get('x-request-id')}-0-abcd",
            "remote_host": "127.0.0.1",
            "remote_port": 5601,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": 7,
            "transfer_mode": "pull",
        }

    async def _stream(self, request: Received, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n")
        writer.write(b"transfer-encoding: chunked\r\n\r\n")
        await writer.drain()
        if reply.hold_body is not None:
            await reply.hold_body.wait()
        events = _events(request, _tokens(request, reply)) if reply.raw is None else reply.raw
        interval = request.body.get(INTERVAL) or 0
        loop = asyncio.get_running_loop()
        due = loop.time()
        for index, event in enumerate(events):
            if index == reply.cut_at:
                writer.transport.abort()
                return False
            if index == len(events) - 1:  # the engine is done before it says so
                self.kept.finished(request.body.get(KV_PARAMS))
            if index == reply.pause_at and reply.resume is not None:
                await reply.resume.wait()
            if interval and index:
                due += interval
                await asyncio.sleep(due - loop.time())
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def _tokens(request: Received, reply: Reply) -> int:
    asked = request.body.get("max_tokens")
    return reply.tokens or (asked if isinstance(asked, int) else DEFAULT_TOKENS)


def _events(request: Received, tokens: int) -> list[bytes]:
    chat = request.path == CHAT_PATH

    def event(text: str, finish: str | None = None) -> bytes:
        content = {"delta": {"content": text}} if chat else {"text": text}
        choice = {"index": 0, **content, "finish_reason": finish}
        return b"data: " + json.dumps({"id": "stub", "choices": [choice]}).encode() + b"\n\n"

    role = [b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'] if chat else []
    usage: list[bytes] = []
    if (request.body.get("stream_options") or {}).get("include_usage"):
        counts = {"prompt_tokens": 7, "completion_tokens": tokens}
        usage = [b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\n\n"]
    return [*role, *[event(" word")] * (tokens - 1), event(LAST_TEXT, "length"), *usage, b"data: [DONE]\n\n"]


async def _read_request(reader: asyncio.StreamReader, connection: int, nth: int) -> Received | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    lines = head.decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ", 2)
    pairs = (line.split(":", 1) for line in lines[1:] if line)
    headers = {key.strip().lower(): value.strip() for key, value in pairs}
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    body = json.loads(raw) if raw and path != TRACES_PATH else {}
    return Received(method, path, headers, body, connection, nth)


def _write_whole(writer: asyncio.StreamWriter, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    more = "".join(f"{key}: {value}\r\n" for key, value in (headers or {}).items())
    head = f"HTTP/1.1 {status} Stub\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    writer.write(head.encode("latin-1") + body)


async def _serve_forever(role: Role, engine_id: str) -> None:
    async with StubEngine(role, engine_id) as stub:
        print(stub.port, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serves until killed."""
    parser = argparse.ArgumentParser(description="a stub engine on a free port of 127.0.0.1")
    parser.add_argument("--role", choices=(PREFILL, DECODE), required=True)
    parser.add_argument("--engine-id", help="(the role and -0)")
    args = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve_forever(args.role, args.engine_id or f"{args.role}-0"))


if __name__ == "__main__":
    main()
