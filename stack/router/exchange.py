"""One client request on its way through the router, and the legs that it has on engines.

A leg owns three things that must be given back whatever happens: a span, its share of the engine's load, and a
connection, whose closing aborts the request in the engine. :meth:`Leg.close` gives them back, once; the exchange
closes the legs that are still open when it ends.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from opentelemetry.trace import SpanKind

from connector import names
from stack.router.bodies import Body, encode
from stack.router.conversations.turns import Turn
from stack.router.errors import EngineAnsweredError, RouterError
from stack.router.pool import Engine
from stack.router.spans import RouterSpan
from stack.router.upstream import Answer, Upstream

CANCELLED = "cancelled"
CLIENT_DISCONNECTED = "client_disconnected"


@dataclass(slots=True)
class Exchange:
    """The state of one request. Instants are monotonic nanoseconds.

    ``request_id`` is the router's own, because P and D pair their legs by it: two requests in flight with one id of
    a client's choice would mix. ``cancel_reason`` is the error type of legs that are closed before their time.
    """

    path: str
    headers: Mapping[bytes, bytes]
    started_ns: int
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    body: Body = field(default_factory=dict)
    tokens: int = 0
    mode: str = ""  # until decided
    fallback: str | None = None
    uncounted: str | None = None  # why it is in no latency
    span: RouterSpan | None = None
    turn: Turn | None = None  # in reuse, of a conversation that can be followed
    reuse: str | None = None  # in reuse, what became of the lookup
    streamed: bool = False  # the answer is an event stream: its first token is not its last byte
    legs: list[Leg] = field(default_factory=list)
    cancel_reason: str = CANCELLED
    status: int = 0
    error_type: str | None = None
    first_token_ns: int | None = None
    last_byte_ns: int | None = None

    def fall_back(self, reason: str) -> None:
        """Makes D compute the prompt alone, visibly."""
        self.mode, self.fallback, self.turn = names.MODE_PLAIN, reason, None

    def close_legs(self) -> None:
        for leg in self.legs:
            leg.close(self.cancel_reason)

    def header(self, name: str) -> str | None:
        value = self.headers.get(name.encode())
        return None if value is None else value.decode("latin-1")


class Leg:
    """One request to one engine. Creating it reserves the engine's load and starts the span."""

    def __init__(self, exchange: Exchange, engine: Engine, span_name: str, upstream: Upstream) -> None:
        assert exchange.span is not None
        self.engine = engine
        self._exchange = exchange
        self._upstream = upstream
        self._answer: Answer | None = None
        self.closed = False
        attributes = {
            names.ATTR_MODE: exchange.mode,
            names.ATTR_REQUEST_ID: exchange.request_id,
            names.ATTR_PEER_ENGINE_ID: engine.engine_id,
        }
        self.span = exchange.span.child(span_name, attributes, kind=SpanKind.CLIENT)
        self._carrier = self.span.carrier()
        engine.begin(exchange.tokens)
        exchange.legs.append(self)

    @property
    def traceparent(self) -> str | None:
        return self._carrier.get(names.HEADER_TRACEPARENT)

    async def open(self, body: Body) -> Answer:
        """Sends ``body`` and returns the engine's answer when it is 200; raises ``RouterError`` otherwise."""
        headers = {names.HEADER_REQUEST_ID: self._exchange.request_id, **self._carrier}
        authorization = self._exchange.header("authorization")
        if authorization is not None:
            headers["authorization"] = authorization
        answer = await self._upstream.post(self.engine, self._exchange.path, encode(body), headers)
        self._answer = answer
        self.span.set(names.ATTR_HTTP_STATUS, answer.status)
        if answer.status != 200:
            raise await self._engine_error(answer)
        return answer

    async def _engine_error(self, answer: Answer) -> EngineAnsweredError:
        try:
            body = await answer.whole()
        except RouterError:
            body = b""  # the status is known, and worth more than a 502
        return EngineAnsweredError(self.engine.engine_id, answer.status, body, answer.content_type, answer.retry_after)

    def close(self, error_type: str | None = None) -> None:
        """Ends the leg; with ``error_type`` as a failed one. Only the first call counts."""
        if self.closed:
            return
        self.closed = True
        self.engine.end(self._exchange.tokens)
        if self._answer is not None:
            self._answer.close()
        if error_type is not None:
            self.span.fail(error_type)
        self.span.end()
