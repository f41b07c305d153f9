"""The scheduler's side of a request: prefill queue and compute on P, first step on D.

Facts come from the scheduler's hooks on the engine core thread; everything here runs on the drain thread.
Times are monotonic nanoseconds unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from connector import metrics, names
from connector.carrier import Carrier, compute_span_id
from connector.engine_context import EngineContext
from connector.reuse_offer import Offer
from connector.waiting import Waiting


@dataclass(slots=True)
class PrefillRequest:
    carrier: Carrier
    request: str
    received_ns: int
    prompt_tokens: int
    offer: Offer | None = None  # mode reuse: of D's kept blocks
    reads_ns: int = 0  # mode reuse: blocks allocated for a read from D
    external_tokens: int = 0  # that are read from D
    reading: bool = False
    scheduled_ns: int = 0
    cached_tokens: int = 0  # whose KV was there when first scheduled
    aborted_ns: int = 0  # when it failed


@dataclass(slots=True)
class DecodeRequest:
    carrier: Carrier
    external_tokens: int = 0
    known_ns: int = 0


class RequestStory:
    """Turns scheduler facts into ``kvpath.prefill.*`` and ``kvpath.first_step``.

    Of an aborted prefill ``kvpath.blocks.held`` is told here as well: the worker never hears of its blocks.
    """

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._prefills: Waiting[str, PrefillRequest] = Waiting(context.losses, self._prefill_forgotten)
        self._decodes: Waiting[str, DecodeRequest] = Waiting(context.losses, self._decode_forgotten)

    # --- P ----------------------------------------------------------------------------------------------------
    def prefill_received(
        self, at_ns: int, request: str, carrier: Carrier, arrival_wall_s: float, prompt_tokens: int
    ) -> None:
        """``arrival_wall_s``: vLLM's own arrival time in its API server, Unix seconds, before the queue to the core."""
        arrival_ns = self._context.clock.monotonic(int(arrival_wall_s * 1e9))
        self._prefills.put(request, at_ns, PrefillRequest(carrier, request, min(arrival_ns, at_ns), prompt_tokens))

    def prefill_offered(self, at_ns: int, request: str, offer: Offer) -> None:
        """Mode reuse: the router offered blocks that D kept, and this became of it."""
        prefill = self._prefills.get(request)
        if prefill is not None:
            prefill.offer = offer

    def prefill_reads(self, at_ns: int, request: str, external_tokens: int) -> None:
        """Mode reuse: P's scheduler allocated blocks for ``external_tokens`` that its worker reads from D."""
        prefill = self._prefills.get(request)
        if prefill is None:
            return
        prefill.reads_ns, prefill.external_tokens, prefill.reading = at_ns, external_tokens, True
        self._queue_span(prefill, at_ns, None)

    def prefill_scheduled(self, at_ns: int, request: str, cached_tokens: int) -> None:
        """``cached_tokens``: prompt tokens whose KV P has already, its own or read from D."""
        prefill = self._prefills.get(request)
        if prefill is None or prefill.scheduled_ns:
            return  # not a disaggregated request, or rescheduled after a preemption
        prefill.scheduled_ns, prefill.cached_tokens, prefill.reading = at_ns, cached_tokens, False
        prefill.external_tokens = min(prefill.external_tokens, cached_tokens)  # 0 when the read failed
        if not prefill.reads_ns:
            self._queue_span(prefill, at_ns, None)
        if prefill.carrier.mode == names.MODE_REUSE:
            self._count_tokens(prefill)

    def prefill_finished(
        self, at_ns: int, request: str, carrier: Carrier, error: str | None, blocks_kept: bool
    ) -> None:
        """The request ended on P. Of blocks that are kept, because they are offered, the worker tells from now on."""
        prefill = self._prefills.pop(request)
        if prefill is None:
            self._context.losses.unmatched += 1
            self._context.span(names.SPAN_PREFILL_COMPUTE, carrier, at_ns, at_ns, error=error, lost=(names.LOST_START,))
            return
        if prefill.scheduled_ns:
            self._compute_span(prefill, prefill.scheduled_ns, at_ns, error)
        elif error is None:  # nothing is computed without being scheduled
            self._context.losses.unmatched += 1
            self._forgotten_queue(prefill)
            self._compute_span(prefill, at_ns, at_ns, None, (names.LOST_START,))
        elif not prefill.reads_ns:
            self._queue_span(prefill, at_ns, error)
            return  # it never had blocks
        if error is not None and not blocks_kept:
            self._aborted(at_ns, prefill)

    def _aborted(self, at_ns: int, prefill: PrefillRequest) -> None:
        """P frees at once what it does not offer, unless a READ is still filling it."""
        prefill.aborted_ns = at_ns
        if prefill.reading:
            self._prefills.put(prefill.request, at_ns, prefill)
        else:
            self._freed(at_ns, prefill)

    def _freed(self, at_ns: int, prefill: PrefillRequest, lost: tuple[str, ...] = ()) -> None:
        reason, since_ns = names.RELEASE_ABORTED, prefill.aborted_ns
        attributes = {names.ATTR_RELEASE_REASON: reason}
        self._context.span(names.SPAN_BLOCKS_HELD, prefill.carrier, since_ns, at_ns, attributes, lost=lost)
        if not lost:
            seconds = (at_ns - since_ns) / 1e9
            self._context.samples.add(metrics.BLOCKS_HELD_SECONDS, seconds, prefill.carrier.mode, reason)

    def _prefill_forgotten(self, prefill: PrefillRequest) -> None:
        if prefill.aborted_ns:
            self._freed(prefill.aborted_ns, prefill, (names.LOST_END,))
        elif prefill.scheduled_ns:
            since_ns = prefill.scheduled_ns
            self._compute_span(prefill, since_ns, since_ns, None, (names.LOST_END,))
        else:
            self._forgotten_queue(prefill)

    def _forgotten_queue(self, prefill: PrefillRequest) -> None:
        if not prefill.reads_ns:  # else its queue is written, and what came of the READ is the worker's to tell
            self._queue_span(prefill, prefill.received_ns, None, (names.LOST_END,))

    def _compute_span(
        self,
        prefill: PrefillRequest,
        start_ns: int,
        end_ns: int,
        error: str | None,
        lost: tuple[str, ...] = (),
    ) -> None:
        parent = prefill.carrier.parent()
        attributes = {names.ATTR_PROMPT_TOKENS: prefill.prompt_tokens}
        if prefill.scheduled_ns:
            attributes[names.ATTR_CACHED_TOKENS] = prefill.cached_tokens
            attributes[names.ATTR_EXTERNAL_TOKENS] = prefill.external_tokens
        self._context.span(
            names.SPAN_PREFILL_COMPUTE,
            prefill.carrier,
            start_ns,
            end_ns,
            attributes,
            span_id=parent and compute_span_id(parent.trace_id, self._context.engine_id, prefill.request),
            error=error,
            lost=lost,
        )
        if error is None and not lost:
            self._context.stage(prefill.carrier, "prefill", end_ns - start_ns)

    def _queue_span(self, prefill: PrefillRequest, end_ns: int, error: str | None, lost: tuple[str, ...] = ()) -> None:
        self._context.span(
            names.SPAN_PREFILL_QUEUE,
            prefill.carrier,
            prefill.received_ns,
            end_ns,
            {names.ATTR_PROMPT_TOKENS: prefill.prompt_tokens, **_reuse_attributes(prefill)},
            error=error,
            lost=lost,
        )
        if not lost:
            self._context.stage(prefill.carrier, "prefill_queue", end_ns - prefill.received_ns)

    def _count_tokens(self, prefill: PrefillRequest) -> None:
        samples, recomputed = self._context.samples, prefill.prompt_tokens - prefill.cached_tokens
        if prefill.external_tokens:
            samples.add(metrics.REUSE_TOKENS, prefill.external_tokens, "reused")
        samples.add(metrics.REUSE_TOKENS, recomputed, "recomputed")

    # --- D ----------------------------------------------------------------------------------------------------
    def blocks_pinned(self, blocks: int, limit: int) -> None:
        """Mode reuse: D keeps as many blocks of finished requests from now on. On the engine core thread."""
        self._context.samples.add(metrics.BLOCKS_PINNED, blocks)
        self._context.samples.add(metrics.BLOCKS_PINNED_LIMIT, limit)

    def decode_received(self, at_ns: int, request: str, carrier: Carrier) -> None:
        self._decodes.put(request, at_ns, DecodeRequest(carrier))

    def decode_allocated(self, at_ns: int, request: str, external_tokens: int) -> None:
        decode = self._decodes.get(request)
        if decode is None:
            return
        decode.external_tokens = external_tokens
        if external_tokens == 0:
            decode.known_ns = at_ns  # D's own prefix cache has it all: nothing to wait for

    def received(self, at_ns: int, requests: frozenset[str]) -> None:
        """The scheduler learned that what ``requests`` had to receive is there (or failed): on D, and on P in reuse."""
        for request in requests:
            decode, prefill = self._decodes.get(request), self._prefills.get(request)
            if decode is not None:
                decode.known_ns = at_ns
            if prefill is not None:
                prefill.reading = False
                if prefill.aborted_ns:
                    self._prefills.pop(request)
                    self._freed(at_ns, prefill)

    def decode_first_token(self, at_ns: int, request: str) -> None:
        decode = self._decodes.pop(request)
        if decode is None or not decode.known_ns:
            self._context.losses.unmatched += 1
        if decode is None:
            return
        if decode.known_ns:
            self._first_step_span(decode, decode.known_ns, at_ns)
            self._context.stage(decode.carrier, "first_step", at_ns - decode.known_ns)
        else:
            self._first_step_span(decode, at_ns, at_ns, lost=(names.LOST_START,))

    def decode_finished(self, at_ns: int, request: str, error: str | None) -> None:
        """The request ended on D; if its first token never left, the span says why."""
        decode = self._decodes.pop(request)
        if decode is not None and decode.known_ns:
            self._first_step_span(decode, decode.known_ns, at_ns, error=error or "no_token")

    def _decode_forgotten(self, decode: DecodeRequest) -> None:
        if decode.known_ns:  # else it waits for its KV, which is the worker's to tell
            self._first_step_span(decode, decode.known_ns, decode.known_ns, lost=(names.LOST_END,))

    def _first_step_span(
        self, decode: DecodeRequest, start_ns: int, end_ns: int, *, error: str | None = None, lost: tuple[str, ...] = ()
    ) -> None:
        tokens = {names.ATTR_EXTERNAL_TOKENS: decode.external_tokens}
        self._context.span(names.SPAN_FIRST_STEP, decode.carrier, start_ns, end_ns, tokens, error=error, lost=lost)

    def idle(self, at_ns: int) -> None:
        self._prefills.expire(at_ns)
        self._decodes.expire(at_ns)


def _reuse_attributes(prefill: PrefillRequest) -> dict[str, str | int]:
    """P's own view of an offer. Proven tokens that are not read are too few, or P's own cache has them."""
    offer = prefill.offer
    if offer is None:
        return {}
    too_short = offer.outcome == names.REUSE_HIT and not prefill.external_tokens
    return {
        names.ATTR_REUSE_OUTCOME: names.REUSE_TOO_SHORT if too_short else offer.outcome,
        names.ATTR_REUSE_TOKENS: offer.tokens,
        names.ATTR_REUSE_MATCHED_TOKENS: offer.matched_tokens,
    }
