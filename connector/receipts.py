"""The receiver's side: registrations sent and completions counted (push), reads wanted (pull, and P's in reuse).

Runs on the drain thread of the worker; times are monotonic nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from opentelemetry.trace import SpanContext

from connector import metrics, names
from connector.carrier import Carrier, register_span_id, write_span_id
from connector.engine_context import EngineContext
from connector.spans import Event, sibling
from connector.waiting import Waiting


@dataclass(slots=True)
class Receipt:
    """A push registration of D, from staging to its last completion. The carrier's stamp: blocks allocated."""

    request: str
    carrier: Carrier
    staged_ns: int
    peer_engine: str
    producers_pp: int
    last_known_ns: int
    sent_ns: int = 0
    connected_ns: int = 0
    registered: bool = False
    expected: int = 0
    completions: list[Event] = field(default_factory=list)
    links: list[SpanContext] = field(default_factory=list)


@dataclass(slots=True)
class WantedRead:
    request: str
    carrier: Carrier
    wanted_ns: int
    peer_engine: str
    peer_request: str
    started: bool = False

    @property
    def peer_name(self) -> str:
        return self.carrier.peer or self.peer_engine


class Receipts:
    """What D's worker waits for. ``agent`` is its own NIXL agent name, ``rank_of`` tells a producer agent's rank."""

    def __init__(
        self, context: EngineContext, rank: int, world_size: int, agent: str, rank_of: Callable[[str], int]
    ) -> None:
        self._context = context
        self._rank = rank
        self._world_size = world_size
        self._agent = agent
        self._rank_of = rank_of
        self._receipts: Waiting[str, Receipt] = Waiting(context.losses, self._never_reported)
        self._reads: Waiting[str, WantedRead] = Waiting(context.losses, self._read_never_reported)
        self._reads_by_peer: dict[str, WantedRead] = {}  # the same
        self._to_register: list[Receipt] = []

    # --- push -------------------------------------------------------------------------------------------------
    def staged(self, at_ns: int, request: str, carrier: Carrier, peer_engine: str, producers_pp: int) -> None:
        self._receipts.put(request, at_ns, Receipt(request, carrier, at_ns, peer_engine, producers_pp, at_ns))

    def sent(self, end_ns: int, request: str, connected_ns: int) -> None:
        """A registration left for one of P's ranks; ``connected_ns`` is when the connection to it was ready."""
        receipt = self._receipts.get(request)
        if receipt is None:
            self._context.losses.unmatched += 1
            return
        receipt.sent_ns = receipt.last_known_ns = end_ns
        receipt.connected_ns = max(receipt.connected_ns, connected_ns)
        if receipt not in self._to_register:
            self._to_register.append(receipt)

    def send_failed(self, at_ns: int, request: str, error: str) -> None:
        receipt = self._receipts.get(request)
        if receipt is not None:
            self._register(receipt, at_ns, error)

    def awaits(self, request: str) -> bool:
        return self._receipts.get(request) is not None

    def completed(self, at_ns: int, agent: str, request: str, producer_world: int) -> None:
        """One producer rank says that its WRITE into our blocks has ended."""
        receipt = self._receipts.get(request)
        if receipt is None:
            return
        receipt.last_known_ns = at_ns
        receipt.expected = receipt.producers_pp * max(1, producer_world // self._world_size)
        attributes = {
            names.ATTR_PRODUCER_RANK: self._rank_of(agent),
            names.ATTR_COMPLETION_COUNT: len(receipt.completions) + 1,
            names.ATTR_COMPLETION_EXPECTED: receipt.expected,
        }
        receipt.completions.append(Event(names.EVENT_COMPLETION, self._context.clock.wall(at_ns), attributes))
        self._context.samples.add(metrics.COMPLETIONS, 1, receipt.carrier.mode)
        leg = receipt.carrier.parent()
        if leg is not None:
            receipt.links.append(sibling(leg, write_span_id(leg.trace_id, request, agent, self._agent)))

    # --- pull -------------------------------------------------------------------------------------------------
    def read_wanted(self, at_ns: int, request: str, carrier: Carrier, peer_engine: str, peer_request: str) -> None:
        wanted = WantedRead(request, carrier, at_ns, peer_engine, peer_request)
        self._reads.put(request, at_ns, wanted)
        self._reads_by_peer[peer_request] = wanted

    def read(self, peer_request: str) -> WantedRead | None:
        return self._reads_by_peer.get(peer_request)

    # --- both -------------------------------------------------------------------------------------------------
    def finished(self, at_ns: int, requests: frozenset[str], error: str | None) -> None:
        """The worker reports ``requests`` as received (or, with ``error``, as failed)."""
        for request in requests:
            receipt = self._receipts.pop(request)
            if receipt is not None:
                self._close(at_ns, receipt, error=error)
                if error is None:
                    expected = receipt.expected
                    self._context.samples.add(metrics.COMPLETIONS_EXPECTED, expected, receipt.carrier.mode)
            wanted = self._reads.pop(request)
            if wanted is not None:
                self._reads_by_peer.pop(wanted.peer_request, None)
                if error is not None and not wanted.started:
                    self._read_span(at_ns, wanted, error=error)
                    self._context.samples.add(metrics.TRANSFERS, 1, wanted.carrier.mode, names.OPERATION_READ, error)

    def idle(self, at_ns: int) -> None:
        for receipt in self._to_register:
            self._register(receipt, receipt.sent_ns, None)
        self._to_register.clear()
        self._receipts.expire(at_ns)
        self._reads.expire(at_ns)

    def handshake_span(self, carrier: Carrier, start_ns: int, end_ns: int, peer_engine: str) -> None:
        attributes = {names.ATTR_RANK: self._rank, names.ATTR_PEER_ENGINE_ID: peer_engine}
        self._context.span(names.SPAN_HANDSHAKE, carrier, start_ns, end_ns, attributes)
        self._context.transfer_stage(carrier, "handshake", end_ns - start_ns)

    def _register(self, receipt: Receipt, end_ns: int, error: str | None, lost: tuple[str, ...] = ()) -> None:
        if receipt.registered:
            return
        receipt.registered = True
        if receipt.connected_ns > receipt.staged_ns:
            self.handshake_span(receipt.carrier, receipt.staged_ns, receipt.connected_ns, receipt.peer_engine)
        leg = receipt.carrier.parent()
        self._context.span(
            names.SPAN_REGISTER,
            receipt.carrier,
            self._context.stamp_ns(receipt.carrier, receipt.staged_ns),
            end_ns,
            {names.ATTR_RANK: self._rank, names.ATTR_PEER_ENGINE_ID: receipt.peer_engine},
            span_id=leg and register_span_id(leg.trace_id, receipt.request, self._agent),
            error=error,
            lost=(*self._context.lost_stamp(receipt.carrier), *lost),
        )
        if error is None and not lost:
            self._context.samples.add(metrics.REGISTRATIONS, 1, "sent")

    def _close(self, end_ns: int, receipt: Receipt, *, error: str | None = None, lost: tuple[str, ...] = ()) -> None:
        if receipt.sent_ns:
            self._register(receipt, receipt.sent_ns, None)
        elif error is None:  # that it was sent is not known
            self._register(receipt, receipt.staged_ns, None, (names.LOST_END,))
            lost = (names.LOST_START, *lost)
        self._await_span(end_ns, receipt, error, lost)

    def _never_reported(self, receipt: Receipt) -> None:
        self._close(receipt.last_known_ns, receipt, lost=(names.LOST_END,))

    def _await_span(self, end_ns: int, receipt: Receipt, error: str | None, lost: tuple[str, ...]) -> None:
        self._context.span(
            names.SPAN_AWAIT,
            receipt.carrier,
            receipt.sent_ns or receipt.staged_ns,
            end_ns,
            {
                names.ATTR_RANK: self._rank,
                names.ATTR_PEER_ENGINE_ID: receipt.peer_engine,
                names.ATTR_COMPLETION_COUNT: len(receipt.completions),
                names.ATTR_COMPLETION_EXPECTED: receipt.expected,
            },
            links=receipt.links,
            events=receipt.completions,
            error=error,
            lost=lost,
        )

    def _read_never_reported(self, wanted: WantedRead) -> None:
        self._reads_by_peer.pop(wanted.peer_request, None)
        if not wanted.started:  # else the transfer says what became of it
            self._read_span(wanted.wanted_ns, wanted, lost=(names.LOST_END,))

    def _read_span(
        self, end_ns: int, wanted: WantedRead, *, error: str | None = None, lost: tuple[str, ...] = ()
    ) -> None:
        """A READ that was never prepared."""
        self._context.span(
            names.SPAN_READ,
            wanted.carrier,
            self._context.stamp_ns(wanted.carrier, wanted.wanted_ns),
            end_ns,
            {names.ATTR_RANK: self._rank, names.ATTR_PEER_ENGINE_ID: wanted.peer_name},
            error=error,
            lost=(*self._context.lost_stamp(wanted.carrier), *lost),
        )
