"""Writes the client's response as ASGI messages, one ``send`` a chunk and nothing in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from connector import names
from connector.clock import now
from stack.router.errors import RouterError
from stack.router.exchange import Exchange
from stack.router.proxy import Opened
from stack.router.stream import StreamScan

_NO_CACHE = (b"cache-control", b"no-cache")


class Send(Protocol):
    async def __call__(self, message: Any, /) -> None: ...


class Responder:
    """The response of one exchange. ``started``: a status was sent. ``complete``: so was the end."""

    def __init__(self, exchange: Exchange, send: Send) -> None:
        self._exchange = exchange
        self._send = send
        self.started = False
        self.complete = False

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        exchange = self._exchange
        own = {names.HEADER_REQUEST_ID: exchange.request_id}
        if exchange.mode:
            own[names.HEADER_MODE] = exchange.mode
        if exchange.fallback is not None:
            own[names.HEADER_FALLBACK] = exchange.fallback
        if exchange.reuse is not None:
            own[names.HEADER_REUSE] = exchange.reuse
        trace_id = exchange.span.trace_id() if exchange.span is not None else None
        if trace_id is not None:
            own[names.HEADER_TRACE_ID] = trace_id
        self.started = True
        exchange.status = status
        encoded = [(key.encode(), value.encode("latin-1")) for key, value in own.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": headers + encoded})

    async def end(self, data: bytes = b"") -> None:
        self.complete = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})
        self._exchange.last_byte_ns = now()

    async def whole(self, status: int, headers: list[tuple[bytes, bytes]], data: bytes) -> None:
        await self.start(status, [*headers, (b"content-length", str(len(data)).encode())])
        await self.end(data)

    async def fail(self, error: RouterError) -> None:
        """Tells the client what failed: with its status, or as an event of the stream that has begun."""
        if not self.started:
            await self.whole(error.status, error.headers(), error.body())
        elif not self.complete:
            # The blank line ends whatever event the engine left unfinished.
            await self.end(b"\n\ndata: " + error.event() + b"\n\n")

    async def stream(self, opened: Opened, scan: StreamScan, follow: Callable[[bytes], None]) -> None:
        """Passes D's event stream through, all but the end; raises ``RouterError`` when it breaks.

        ``follow`` sees every chunk before the client does.
        """
        await self.start(200, [(b"content-type", opened.answer.content_type.encode("latin-1")), _NO_CACHE])
        exchange, send, read = self._exchange, self._send, opened.answer.chunk
        chunk = opened.data
        while chunk:
            is_first = scan.seeking and scan.first_token_in(chunk)
            follow(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if is_first:
                exchange.first_token_ns = now()
            chunk = await read()
