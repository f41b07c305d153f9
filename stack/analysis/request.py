"""Finds the spans of the trace contract in one trace: who is the prefill leg, which WRITE belongs to which rank.

Pure; looks at names, parents and ranks, never at which span happens to come first in time across hosts. A span whose
parent is wrong is still found by name, so that one lost edge does not hide the rest: :mod:`stack.analysis.complete`
is what reports the edge. A span of which its process lost the start or the end plays no part: it would be a wrong
length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from connector import names
from stack.analysis.trace import Span, Trace

SPAN_LLM_REQUEST = "llm_request"  # vLLM's own span
_UNBOUNDED = frozenset({names.LOST_START, names.LOST_END})


@dataclass(frozen=True, slots=True)
class Transfer:
    """One WRITE or READ of one rank, with its three phases where the trace has them."""

    span: Span
    prepare: Span | None
    submit: Span | None
    flight: Span | None

    @property
    def rank(self) -> object:
        return self.span.attributes.get(names.ATTR_RANK)


@dataclass(frozen=True, slots=True)
class RequestSpans:
    """The spans of one request by their part in it; ``None`` or empty where the trace lacks them."""

    trace: Trace
    by_name: dict[str, list[Span]]
    half_known: frozenset[str]  # names of spans that play no part
    root: Span | None
    mode: str
    request_id: str
    leg_prefill: Span | None
    leg_decode: Span | None
    queue: Span | None
    compute: Span | None
    registers: tuple[Span, ...]
    rendezvous: tuple[Span, ...]
    prefill_handshakes: tuple[Span, ...]
    decode_handshakes: tuple[Span, ...]
    transfers: tuple[Transfer, ...]  # P → D
    reuse_transfers: tuple[Transfer, ...]  # P's READs of what D kept of the turn before
    awaits: tuple[Span, ...]
    first_step: Span | None
    blocks_held: Span | None  # by P
    kept: tuple[Span, ...]  # mode reuse: D's blocks, for the next turn
    lookup: Span | None  # of what D kept of the turn before

    @property
    def first_token_ns(self) -> int | None:
        return self.root.event_time(names.EVENT_FIRST_TOKEN) if self.root else None

    @property
    def streamed(self) -> bool:
        """False when the answer left in one piece: its first token is then its last byte."""
        return self.root is None or self.first_token_ns != self.root.end_ns

    @property
    def nothing_transferred(self) -> bool:
        """D found the whole prompt in its own prefix cache, so that there was nothing to transfer."""
        step = self.first_step
        return not self.transfers and step is not None and step.attributes.get(names.ATTR_EXTERNAL_TOKENS) == 0

    @property
    def uncounted(self) -> str:
        """Why no figure counts this request, "" when figures do: a measurement sent it on its own account."""
        return str(self.root.attributes.get(names.ATTR_UNCOUNTED, "")) if self.root else ""

    @property
    def reuse_failed(self) -> bool:
        return any(transfer.span.failed for transfer in self.reuse_transfers)


def request_spans(trace: Trace) -> RequestSpans:
    """Sorts the spans of ``trace`` by their part in the request."""
    half_known = frozenset(span.name for span in trace.spans if _half_known(span))
    by_name = trace.named()
    for name in half_known:
        by_name[name] = [span for span in by_name[name] if not _half_known(span)]
    root = trace.server_span()
    mode = str(_first_attribute(root, trace, names.ATTR_MODE))
    prefill, decode = _leg(by_name, names.SPAN_LEG_PREFILL), _leg(by_name, names.SPAN_LEG_DECODE)
    # In mode plain D computes the prompt, so what would be P's spans lie under the decode leg, and nowhere else:
    # after a fall-back the trace also holds those of the prefill that came to nothing.
    plain = mode == names.MODE_PLAIN
    computing = decode if plain else prefill

    def under(leg: Span | None, name: str) -> list[Span]:
        return _under(leg, by_name.get(name, ()), strict=plain)

    def of_both(name: str) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
        spans = by_name.get(name, ())
        return _by_side(spans, prefill, names.SERVICE_PREFILL), _by_side(spans, decode, names.SERVICE_DECODE)

    transfer_name = names.SPAN_WRITE if mode == names.MODE_PUSH else names.SPAN_READ
    transfers: Sequence[Span] = under(prefill if mode == names.MODE_PUSH else decode, transfer_name)
    reads_back: Sequence[Span] = ()
    held: Sequence[Span] = under(prefill, names.SPAN_BLOCKS_HELD)
    kept: tuple[Span, ...] = ()
    if mode == names.MODE_REUSE:  # both engines READ, and both hold blocks
        reads_back, transfers = of_both(names.SPAN_READ)
        held, kept = of_both(names.SPAN_BLOCKS_HELD)
    prefill_handshakes, decode_handshakes = of_both(names.SPAN_HANDSHAKE)
    return RequestSpans(
        trace=trace,
        by_name=by_name,
        half_known=half_known,
        root=root,
        mode=mode,
        request_id=str(_first_attribute(root, trace, names.ATTR_REQUEST_ID)),
        leg_prefill=prefill,
        leg_decode=decode,
        queue=_last(under(computing, names.SPAN_PREFILL_QUEUE)),
        compute=_last(under(computing, names.SPAN_PREFILL_COMPUTE)),
        registers=tuple(under(decode, names.SPAN_REGISTER)),
        rendezvous=tuple(under(prefill, names.SPAN_RENDEZVOUS)),
        prefill_handshakes=prefill_handshakes,
        decode_handshakes=decode_handshakes,
        transfers=_transfers(by_name, transfer_name, transfers),
        reuse_transfers=_transfers(by_name, transfer_name, reads_back),
        awaits=tuple(under(decode, names.SPAN_AWAIT)),
        first_step=_last(under(decode, names.SPAN_FIRST_STEP)),
        blocks_held=_last(held),
        kept=kept,
        lookup=_last(by_name.get(names.SPAN_REUSE_LOOKUP, ())),
    )


def lost(span: Span) -> tuple[str, ...]:
    """What the process that made the span says it lost of it."""
    items = span.attributes.get(names.ATTR_INCOMPLETE)
    return tuple(map(str, items)) if isinstance(items, tuple) else (str(items),) if items else ()


def _half_known(span: Span) -> bool:
    return not _UNBOUNDED.isdisjoint(lost(span))


def _first_attribute(root: Span | None, trace: Trace, key: str) -> object:
    if root is not None and key in root.attributes:
        return root.attributes[key]
    return next((s.attributes[key] for s in trace.spans if key in s.attributes), "")


def _leg(by_name: dict[str, list[Span]], name: str) -> Span | None:
    """After a retry the leg that counts is the last one that did not fail."""
    legs = by_name.get(name, ())
    return _last([leg for leg in legs if not leg.failed]) or _last(legs)


def _last(spans: Sequence[Span]) -> Span | None:
    return spans[-1] if spans else None


def _under(leg: Span | None, spans: Sequence[Span], strict: bool) -> list[Span]:
    children = [s for s in spans if leg is not None and s.parent_span_id == leg.span_id]
    return children if children or strict else list(spans)


def _by_side(spans: Sequence[Span], leg: Span | None, service: str) -> tuple[Span, ...]:
    """What both engines may do belongs to the one that did it; its leg decides when the resource does not say."""
    services = (names.SERVICE_PREFILL, names.SERVICE_DECODE)
    leg_id = leg.span_id if leg is not None else ""
    return tuple(
        s
        for s in spans
        if s.resource.service_name == service
        or (s.resource.service_name not in services and s.parent_span_id == leg_id)
    )


def _transfers(by_name: dict[str, list[Span]], name: str, spans: Sequence[Span]) -> tuple[Transfer, ...]:
    phases: dict[tuple[str, str], Span] = {}
    for suffix in (names.SUFFIX_PREPARE, names.SUFFIX_SUBMIT, names.SUFFIX_FLIGHT):
        for phase in by_name.get(name + suffix, ()):
            phases[phase.parent_span_id, suffix] = phase
    return tuple(
        Transfer(
            span,
            phases.get((span.span_id, names.SUFFIX_PREPARE)),
            phases.get((span.span_id, names.SUFFIX_SUBMIT)),
            phases.get((span.span_id, names.SUFFIX_FLIGHT)),
        )
        for span in spans
    )
