"""Runs the legs of a request until D's answer has begun: the part where the modes differ.

push   both legs are sent at once; the first to fail ends the request and gives up the other (P may have to finish).
pull   P first, then the choice of D by its load at that moment, then D.
reuse  the same, and before it a look at what D kept of the conversation's last turn, which P is then offered.
plain  D alone, for requests that KV transfer cannot serve and for answers of P that cannot be used.

What comes back is D's answer with its first bytes. Only then may the client's response start: before, every failure
can still be told with its own status, also that of an engine which sends its headers long before its first token.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from connector import names
from stack.router import params
from stack.router.bodies import Body, decode_body, prefill_body
from stack.router.conversations.turns import Conversations, Lookup
from stack.router.errors import BrokenAnswerError, DeadlineError, RouterError
from stack.router.exchange import CANCELLED, Exchange, Leg
from stack.router.metrics import RouterMetrics
from stack.router.pool import POLICY, Engine, EnginePool, describe
from stack.router.settings import DECODE, PREFILL, Role
from stack.router.upstream import Answer, Upstream

PHASE_BOTH = "both"
NO_LOOKUP = Lookup("")
EVENT_STREAM = "text/event-stream"


@dataclass(slots=True)
class Opened:
    """D's answer. ``data`` is the whole body, or of an event stream the first bytes. ``prefill`` may still run."""

    leg: Leg
    answer: Answer
    data: bytes
    streaming: bool
    prefill: asyncio.Task[bytes] | None = None


class Proxy:
    """Routes requests over the pool. Between requests it holds only prefills that outlive their request."""

    def __init__(
        self,
        pool: EnginePool,
        upstream: Upstream,
        metrics: RouterMetrics,
        conversations: Conversations,
        settle_s: float,
    ) -> None:
        self._conversations = conversations
        self._settle_s = settle_s
        self._settling: set[asyncio.Task[None]] = set()
        self._pool = pool
        self._upstream = upstream
        self._metrics = metrics

    async def open(self, exchange: Exchange) -> Opened:
        """Runs the legs until D has begun to answer. Raises ``RouterError``; legs are closed by the exchange."""
        if exchange.mode == names.MODE_PUSH:
            return await self._push(exchange)
        if exchange.mode in (names.MODE_PULL, names.MODE_REUSE):
            return await self._pull(exchange)
        return await self._plain(exchange)

    async def _plain(self, exchange: Exchange) -> Opened:
        (engine,) = self._route(exchange, DECODE, (DECODE,))
        leg = Leg(exchange, engine, names.SPAN_LEG_DECODE, self._upstream)
        return await self._decode(leg, decode_body(exchange.body, None))

    async def _pull(self, exchange: Exchange) -> Opened:
        self._pool.require(DECODE, exchange.mode)  # or P would work in vain; the choice itself comes later
        found = await self._look_up(exchange)
        (prefill,) = self._route(exchange, PREFILL, (PREFILL,))
        leg = Leg(exchange, prefill, names.SPAN_LEG_PREFILL, self._upstream)
        answered = params.read_answer(await self._prefill(exchange, leg, kept=found.params), prefill.settings)
        if isinstance(answered, params.Refusal):
            exchange.fall_back(answered.reason)
            return await self._plain(exchange)
        (decode,) = self._route(exchange, DECODE, (DECODE,), found.decode)  # its prefix cache may have the turn before
        leg = Leg(exchange, decode, names.SPAN_LEG_DECODE, self._upstream)
        followed = exchange.turn is not None
        transfer = params.for_pull_decode(
            exchange.mode, answered, exchange.request_id, leg.traceparent, followed=followed
        )
        return await self._decode(leg, decode_body(exchange.body, transfer))

    async def _look_up(self, exchange: Exchange) -> Lookup:
        """Asks, in reuse and under a span, what is kept of the turn before."""
        if exchange.turn is None:
            return NO_LOOKUP
        assert exchange.span is not None
        attributes = {names.ATTR_MODE: exchange.mode, names.ATTR_REQUEST_ID: exchange.request_id}
        span = exchange.span.child(names.SPAN_REUSE_LOOKUP, attributes)
        try:
            found = await self._conversations.look_up(exchange.turn)
            span.set(names.ATTR_REUSE_OUTCOME, found.outcome)
            span.set(names.ATTR_REUSE_TOKENS, found.tokens)
            if found.age_s is not None:
                span.set(names.ATTR_REUSE_AGE, found.age_s)
        finally:
            span.end()
        exchange.reuse = found.outcome
        self._metrics.looked_up(found.outcome, found.tokens, found.age_s)
        return found

    async def _push(self, exchange: Exchange) -> Opened:
        prefill, decode = self._route(exchange, PHASE_BOTH, (PREFILL, DECODE))
        first = Leg(exchange, prefill, names.SPAN_LEG_PREFILL, self._upstream)
        second = Leg(exchange, decode, names.SPAN_LEG_DECODE, self._upstream)
        transfer = params.for_push_decode(prefill.settings, exchange.request_id, second.traceparent)
        prefilling = asyncio.create_task(self._prefill(exchange, first, second))
        decoding = asyncio.create_task(self._decode(second, decode_body(exchange.body, transfer)))
        try:
            opened = await _first_failure_or_decode(prefilling, decoding)
        except BaseException as error:
            await _cancel(decoding)
            if isinstance(error, asyncio.CancelledError | DeadlineError):
                self._let_finish(exchange, first, prefilling)
            else:
                await _cancel(prefilling)  # an engine has answered, or is gone: D holds no blocks for this request
            raise
        opened.prefill = prefilling
        return opened

    def _let_finish(self, exchange: Exchange, leg: Leg, prefilling: asyncio.Task[bytes]) -> None:
        """Lets P's leg of a push that was given up run to its end, apart from the exchange, for ``deadline_s``.

        D may have registered blocks by now. It frees them only when P's WRITE into them has ended, aborted or not: a
        P that is stopped before it finishes would leave them taken for good, and D's engine spinning.
        """
        if prefilling.done():
            prefilling.exception()  # seen: the leg has told it to its span
            return
        exchange.legs.remove(leg)

        async def finish() -> None:
            await asyncio.wait({prefilling}, timeout=self._settle_s)
            await _cancel(prefilling)
            leg.close(CANCELLED)

        task = asyncio.create_task(finish())
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def stop(self) -> None:
        """Cancels what still runs apart from its exchange."""
        await _cancel(*self._settling)

    async def _prefill(
        self, exchange: Exchange, leg: Leg, early_decode: Leg | None = None, kept: params.Params | None = None
    ) -> bytes:
        """Returns the body of P's answer. In push, notes whether D would be chosen again now."""
        transfer = params.for_prefill(exchange.mode, exchange.request_id, leg.traceparent, kept)
        try:
            answer = await leg.open(prefill_body(exchange.path, exchange.body, transfer))
            body = await answer.whole()
        except RouterError as error:
            leg.close(error.error_type)
            raise
        leg.close()
        if early_decode is not None and not early_decode.closed:
            self._metrics.early_choice(self._pool.regrets(early_decode.engine, exchange.tokens, exchange.mode))
        return body

    async def _decode(self, leg: Leg, body: Body) -> Opened:
        try:
            answer = await leg.open(body)
            streaming = answer.content_type.startswith(EVENT_STREAM)
            data = await (answer.chunk() if streaming else answer.whole())
            if not data:
                raise BrokenAnswerError(f"decode engine {leg.engine.engine_id} answered 200 with an empty body")
        except RouterError as error:
            leg.close(error.error_type)
            raise
        return Opened(leg, answer, data, streaming)

    def _route(
        self, exchange: Exchange, phase: str, roles: tuple[Role, ...], preferred: str | None = None
    ) -> list[Engine]:
        """Chooses one engine a role, under a span that tells the choice and what it was made from."""
        assert exchange.span is not None
        span = exchange.span.child(
            names.SPAN_ROUTE,
            {
                names.ATTR_MODE: exchange.mode,
                names.ATTR_REQUEST_ID: exchange.request_id,
                names.ATTR_PHASE: phase,
                names.ATTR_POLICY: POLICY,
            },
        )
        try:
            candidates = [c for role in roles for c in self._pool.candidates(role, exchange.mode)]
            span.set(names.ATTR_CANDIDATES, describe(candidates))
            chosen = [self._pool.choose(role, exchange.mode, preferred) for role in roles]
            span.set(names.ATTR_CHOSEN, [engine.engine_id for engine in chosen])
        except RouterError as error:
            span.fail(error.error_type)
            raise
        finally:
            span.end()
        for engine in chosen:
            self._metrics.chosen(engine.engine_id, engine.settings.role, exchange.mode)
        return chosen


async def _first_failure_or_decode(prefill: asyncio.Task[bytes], decode: asyncio.Task[Opened]) -> Opened:
    """Returns D's answer, or raises what failed first. Once D has answered, P's failure no longer matters."""
    waiting: set[asyncio.Task] = {prefill, decode}
    while True:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if decode in done and decode.exception() is None:
            return decode.result()
        if prefill in done:
            prefill.result()
        if decode in done:
            return decode.result()


async def _cancel(*tasks: asyncio.Task) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def reap(prefill: asyncio.Task[bytes] | None, grace_s: float) -> None:
    """Waits for P's leg of a push whose D has finished, and cancels it after ``grace_s`` seconds. Never raises."""
    if prefill is None:
        return
    if not prefill.done():
        await asyncio.wait({prefill}, timeout=grace_s)
        await _cancel(prefill)
    elif not prefill.cancelled():
        prefill.exception()  # seen: the leg has told it to its span
