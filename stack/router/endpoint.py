"""The two generation endpoints, as plain ASGI: read, decide, run the legs, answer, account.

One coroutine watches for the client's departure while another serves; whatever ends first, the legs are closed, the
spans end and the metrics are told, in :meth:`GenerationEndpoint._account`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from connector import names
from connector.clock import now
from stack.router import bodies
from stack.router.conversations.answer import ANSWER_UNFINISHED
from stack.router.conversations.entry import key_of
from stack.router.conversations.history import history_of
from stack.router.conversations.turns import Conversations, Turn
from stack.router.errors import BadRequestError, BrokenAnswerError, DeadlineError, RouterError, ShuttingDownError
from stack.router.exchange import CLIENT_DISCONNECTED, Exchange
from stack.router.metrics import RouterMetrics
from stack.router.mode import ModePolicy
from stack.router.proxy import Opened, Proxy, reap
from stack.router.respond import Responder
from stack.router.settings import RouterSettings
from stack.router.spans import RouterSpan, Spans, Value
from stack.router.stream import StreamScan, usage_of

STATUS_CLIENT_GONE = 499  # in metrics and spans only: nobody is there to read it
# Why nothing of a turn can be reused, in the metrics, beside names.REUSE_NOT_FOLLOWED and an answer's own problems:
NO_ANSWER = "no_answer"  # refused, failed, or given up before the first token
STREAM_ERROR = "stream_error"  # the engine's own error event in a stream
REAP_GRACE_S = 5.0  # for P's answer when D has already finished
_log = logging.getLogger(__name__)


class ClientGoneError(Exception):
    """The client closed its connection."""


class GenerationEndpoint:
    """ASGI application behind ``/v1/completions`` and ``/v1/chat/completions``."""

    def __init__(
        self,
        settings: RouterSettings,
        policy: ModePolicy,
        proxy: Proxy,
        conversations: Conversations,
        spans: Spans,
        metrics: RouterMetrics,
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._proxy = proxy
        self._conversations = conversations
        self._spans = spans
        self._metrics = metrics

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        exchange = Exchange(scope["path"], dict(scope["headers"]), now())
        responder = Responder(exchange, send)
        self._metrics.started()
        try:
            raw = await _read(receive, self._settings.max_body_bytes)
            self._admit(exchange, raw)
            await self._watched(exchange, responder, receive)
        except ClientGoneError:
            exchange.status, exchange.error_type = STATUS_CLIENT_GONE, CLIENT_DISCONNECTED
        except RouterError as error:
            exchange.error_type = error.error_type
            await responder.fail(error)
        except Exception as error:  # a fault of the router's own: the client still gets an answer
            _log.exception("request %s failed inside the router", exchange.request_id)
            exchange.error_type = type(error).__name__
            await responder.fail(RouterError("internal error of the router; see its log"))
        except asyncio.CancelledError:  # the server's, which waits no longer; raised again it would answer by itself
            stopping = ShuttingDownError()
            exchange.error_type = stopping.error_type
            await responder.fail(stopping)
        finally:
            self._account(exchange)

    def _admit(self, exchange: Exchange, raw: bytes) -> None:
        """Understands the request, starts its span and decides its mode."""
        try:
            body = bodies.parse(raw)
        except BadRequestError:
            self._start_span(exchange)
            raise
        if bodies.drop_transfer_fields(body):
            self._metrics.dropped_client_params()
        exchange.body = body
        exchange.tokens = bodies.estimated_prompt_tokens(body, len(raw))
        self._start_span(exchange)
        exchange.uncounted = self._policy.uncounted(exchange.header(names.HEADER_UNCOUNTED))
        conversation = bodies.conversation_of(body, exchange.headers)
        exchange.mode = self._policy.decide(exchange.header(names.HEADER_MODE), conversation or exchange.request_id)
        reason = bodies.plain_reason(exchange.path, body)
        if reason is not None and exchange.mode != names.MODE_PLAIN:
            exchange.fall_back(reason)
        if exchange.mode == names.MODE_REUSE:
            self._begin_turn(exchange, conversation)

    def _begin_turn(self, exchange: Exchange, conversation: str | None) -> None:
        """Follows the conversation. A request that has none, or cannot be followed, is served as a pull would be."""
        history = history_of(exchange.path, exchange.body)
        if conversation is None or history is None:
            exchange.reuse = names.REUSE_NO_CONVERSATION if conversation is None else names.REUSE_NOT_PLAIN_TEXT
            self._metrics.not_kept(exchange.reuse)
            return
        key = key_of(exchange.header("authorization"), conversation)
        exchange.turn = Turn.begin(key, history, chat=exchange.path == bodies.CHAT_PATH)

    def _start_span(self, exchange: Exchange) -> RouterSpan:
        operation = bodies.operation_of(exchange.path)
        model = bodies.model_of(exchange.body, self._settings.model_name)
        attributes: dict[str, Value] = {
            names.ATTR_GEN_AI_OPERATION: operation,
            names.ATTR_GEN_AI_PROVIDER: names.PROVIDER,
            names.ATTR_HTTP_METHOD: "POST",
            names.ATTR_URL_PATH: exchange.path,
            names.ATTR_REQUEST_ID: exchange.request_id,
        }
        if model is not None:
            attributes[names.ATTR_GEN_AI_MODEL] = model
        client_id = exchange.header(names.HEADER_REQUEST_ID)
        if client_id is not None:
            attributes[names.ATTR_CLIENT_REQUEST_ID] = client_id[:128]
        name = operation if model is None else f"{operation} {model}"
        exchange.span = self._spans.server(name, exchange.headers, attributes, exchange.started_ns)
        return exchange.span

    async def _watched(self, exchange: Exchange, responder: Responder, receive: Any) -> None:
        """Serves until done or until the client leaves, which cancels everything."""
        serving = asyncio.create_task(self._serve(exchange, responder))
        leaving = asyncio.create_task(_client_leaves(receive))
        try:
            await asyncio.wait((serving, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done() and not responder.complete:
                exchange.cancel_reason = CLIENT_DISCONNECTED
                raise ClientGoneError
            await serving
        finally:
            leaving.cancel()
            if not serving.done():
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)

    async def _serve(self, exchange: Exchange, responder: Responder) -> None:
        opened = await self._open(exchange)
        try:
            if opened.streaming:
                await self._stream(exchange, responder, opened)
            else:
                await self._whole(exchange, responder, opened)
        except RouterError as error:
            opened.leg.close(error.error_type)
            raise
        finally:
            if opened.prefill is not None and not responder.complete:
                opened.prefill.cancel()
        opened.leg.close(exchange.error_type)
        await reap(opened.prefill, REAP_GRACE_S)

    async def _open(self, exchange: Exchange) -> Opened:
        limit_s = self._settings.deadline_s
        spent_s = (now() - exchange.started_ns) / 1e9
        try:
            async with asyncio.timeout(limit_s - spent_s) as timeout:
                try:
                    return await self._proxy.open(exchange)
                except BaseException:
                    if timeout.expired():
                        exchange.cancel_reason = DeadlineError.error_type
                    exchange.close_legs()  # before the client is told: the engines need not wait for that
                    raise
        except TimeoutError:
            raise DeadlineError(f"no engine answered within {limit_s:g} s (deadline_s)") from None

    async def _stream(self, exchange: Exchange, responder: Responder, opened: Opened) -> None:
        scan = StreamScan(chat=exchange.path == bodies.CHAT_PATH)
        exchange.streamed = True
        try:
            await responder.stream(opened, scan, self._follower(exchange, opened, scan))
        except RouterError:
            if not scan.end().done:
                raise
        finally:
            turn = exchange.turn
            if turn is not None and turn.answer.finished and not turn.ending:  # the client left before [DONE]
                self._conversations.ended(turn, opened.leg.engine.engine_id, exchange.request_id)
        end = scan.end()
        if end.failed:
            exchange.error_type = STREAM_ERROR
        elif not end.done:
            raise BrokenAnswerError(f"decode engine {opened.leg.engine.engine_id} ended its stream without [DONE]")
        await responder.end()
        self._usage(exchange, end.usage, scan.events - 1)

    def _follower(self, exchange: Exchange, opened: Opened, scan: StreamScan) -> Callable[[bytes], None]:
        """Returns what sees every chunk just before the client does."""
        turn = exchange.turn
        if turn is None:
            return scan.follow

        def follow(chunk: bytes) -> None:
            scan.follow(chunk)
            if turn.answer.follow(chunk):
                self._conversations.ended(turn, opened.leg.engine.engine_id, exchange.request_id)

        return follow

    async def _whole(self, exchange: Exchange, responder: Responder, opened: Opened) -> None:
        if exchange.turn is not None:
            self._conversations.ended(exchange.turn, opened.leg.engine.engine_id, exchange.request_id, body=opened.data)
        content_type = opened.answer.content_type or "application/json"
        await responder.whole(200, [(b"content-type", content_type.encode("latin-1"))], opened.data)
        exchange.first_token_ns = exchange.last_byte_ns
        try:
            self._usage(exchange, usage_of(json.loads(opened.data)), 0)
        except (ValueError, RecursionError):
            exchange.error_type = BrokenAnswerError.error_type

    def _usage(self, exchange: Exchange, usage: Mapping[str, Any] | None, events: int) -> None:
        """Notes token counts, and the time per output token where more than one instant is known."""
        known = usage or {}
        produced = known.get("completion_tokens")
        assert exchange.span is not None
        for key, value in (
            (names.ATTR_GEN_AI_INPUT_TOKENS, known.get("prompt_tokens")),
            (names.ATTR_GEN_AI_OUTPUT_TOKENS, produced),
        ):
            if type(value) is int:
                exchange.span.set(key, value)
        tokens = produced if type(produced) is int else events
        first, last = exchange.first_token_ns, exchange.last_byte_ns
        counts = exchange.uncounted is None
        if counts and first is not None and last is not None and last > first and tokens > 1:
            self._metrics.per_token(exchange.mode, (last - first) / 1e9 / (tokens - 1))

    def _account(self, exchange: Exchange) -> None:
        exchange.close_legs()
        if exchange.turn is not None and not exchange.turn.ending:
            unfinished = NO_ANSWER if exchange.first_token_ns is None else ANSWER_UNFINISHED
            self._metrics.not_kept(exchange.turn.answer.problem or unfinished)
        span = exchange.span or self._start_span(exchange)
        ended_ns = exchange.last_byte_ns or now()
        mode = exchange.mode or names.MODE_NONE
        span.set(names.ATTR_MODE, mode)
        if exchange.status:
            span.set(names.ATTR_HTTP_STATUS, exchange.status)
        if exchange.fallback is not None:
            span.set(names.ATTR_FALLBACK, exchange.fallback)
            if exchange.status == 200:  # D did serve it
                self._metrics.fell_back(exchange.fallback)
        if exchange.uncounted is not None:
            span.set(names.ATTR_UNCOUNTED, exchange.uncounted)
        if exchange.first_token_ns is not None:
            span.event(names.EVENT_FIRST_TOKEN, exchange.first_token_ns)
            if exchange.streamed and exchange.uncounted is None:  # else it is the last byte, too
                seconds = (exchange.first_token_ns - exchange.started_ns) / 1e9
                self._metrics.first_token(mode, seconds, span.trace_id())
        if exchange.error_type is not None:
            span.fail(exchange.error_type)
        span.end(ended_ns)
        duration_s = (ended_ns - exchange.started_ns) / 1e9 if exchange.uncounted is None else None
        self._metrics.ended(mode, exchange.status, duration_s, exchange.error_type)


async def _read(receive: Any, limit: int) -> bytes:
    """Returns the request's body; raises ``BadRequestError`` above ``limit`` bytes and ``ClientGoneError``."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        size += len(message.get("body", b""))
        if size > limit:
            raise BadRequestError(f"the request body is larger than {limit} bytes", status=413, code="body_too_large")
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _client_leaves(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
