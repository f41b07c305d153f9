"""The giver's side: finished prefills meet registrations, and blocks are held until somebody has them.

P's side in every mode; D's in mode reuse, where it holds blocks for the next turn. Runs on the drain thread of the
worker; times are monotonic nanoseconds. Prefill and registration are paired as upstream pairs them: by request id
without the random suffix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opentelemetry.trace import SpanContext

from connector import metrics, names
from connector.carrier import Carrier, base_request_id, parse_traceparent, register_span_id
from connector.engine_context import EngineContext
from connector.spans import sibling
from connector.waiting import Waiting


@dataclass(slots=True)
class Finished:
    at_ns: int
    request: str
    carrier: Carrier


@dataclass(slots=True)
class Registration:
    at_ns: int
    request: str  # D's request id
    agent: str  # D's NIXL agent
    engine: str
    traceparent: str
    known: bool = True  # False: the fact that it arrived was lost

    def span(self) -> SpanContext | None:
        """The context of D's ``kvpath.register``."""
        leg = parse_traceparent(self.traceparent)
        return leg and sibling(leg, register_span_id(leg.trace_id, self.request, self.agent))


@dataclass(slots=True)
class Meeting:
    """A prefill and the registration that it met."""

    finished: Finished
    registration: Registration

    @property
    def met_ns(self) -> int:
        return max(self.finished.at_ns, self.registration.at_ns)


@dataclass(slots=True)
class Held:
    """Blocks of one request. They are out of P's hands once as many transfers ended as were due."""

    carrier: Carrier | None  # its stamp is the instant prefill finished; None: the worker was not told yet
    untold_before: int  # facts that this process had lost by then
    since_ns: int = 0  # when the worker was told
    due: int = 0
    ended: int = 0
    decode_request: str = ""  # whose registration it met
    released_ns: int = 0

    @property
    def taken(self) -> bool:
        return 0 < self.due <= self.ended


EARLY_MAX_AGE_NS = 60 * 1_000_000_000


class Offers:
    """Prefills waiting for registrations, registrations waiting for prefills, blocks waiting to be released."""

    def __init__(self, context: EngineContext, rank: int) -> None:
        self._context = context
        self._rank = rank
        self._finished: Waiting[str, Finished] = Waiting(context.losses, self._never_met)
        self._registered: Waiting[str, Registration] = Waiting(context.losses)  # of a prefill that is not known
        self._met: Waiting[str, Meeting] = Waiting(context.losses)
        self._held: Waiting[str, Held] = Waiting(context.losses, self._never_released)
        # With asynchronous scheduling a reader can be done before the worker learns that the prefill has finished.
        # What is not claimed in time was late instead: it came after the lease, or was never ours.
        self._early: Waiting[str, Held] = Waiting(context.losses, max_age_ns=EARLY_MAX_AGE_NS, counted_as="unmatched")

    def finished(self, at_ns: int, request: str, carrier: Carrier) -> None:
        """The worker learned that the blocks of P's ``request`` are ready to be pushed."""
        arrival = Finished(at_ns, request, carrier)
        registration = self._registered.pop(base_request_id(request))
        if registration is None:
            self._finished.put(base_request_id(request), at_ns, arrival)
        else:
            self._meet(Meeting(arrival, registration))

    def registered(self, at_ns: int, agent: str, data: dict[str, Any]) -> None:
        """A registration arrived; ``data`` is upstream's payload with our carrier in it."""
        request = data["request_id"]
        self._context.samples.add(metrics.REGISTRATIONS, 1, "received")
        telemetry = data.get(names.PARAM_TELEMETRY) or {}
        traceparent = telemetry.get(names.PARAM_TRACEPARENT, "")
        engine = telemetry.get(names.PARAM_INSTANCE) or data.get("decode_engine_id", "")
        arrival = Registration(at_ns, request, agent, engine, traceparent)
        finished = self._finished.pop(base_request_id(request))
        if finished is not None:
            self._meet(Meeting(finished, arrival))
        elif self._met.get(request) is None:  # another rank of D may register the same request again
            self._registered.put(base_request_id(request), at_ns, arrival)

    def meeting(self, decode_request: str, agent: str) -> Meeting | None:
        """The meeting that a WRITE to ``agent`` is for.

        Nobody writes without a registration: if none is known of a prefill that is, the fact that it came was lost.
        """
        found = self._met.get(decode_request)
        finished = None if found else self._finished.pop(base_request_id(decode_request))
        if finished is not None:
            traceparent = finished.carrier.traceparent  # of the same trace, which is all that its span id needs
            unseen = Registration(finished.at_ns, decode_request, agent, "", traceparent, known=False)
            found = Meeting(finished, unseen)
            self._meet(found)
        return found

    def held(self, at_ns: int, request: str, carrier: Carrier) -> None:
        """P keeps the blocks of ``request`` until they are taken or their lease ends."""
        held = self._early.pop(request) or Held(carrier, self._context.losses.untold)
        held.carrier, held.since_ns = carrier, at_ns
        if held.released_ns:
            self._release(held.released_ns, request, held)
        else:
            self._held.put(request, at_ns, held)

    def writing(self, request: str) -> None:
        """One more WRITE has to end before P is done with the blocks of ``request``."""
        held = self._held.get(request)
        if held is not None:
            held.due += 1

    def written(self, request: str) -> None:
        """A WRITE of ``request`` succeeded."""
        held = self._held.get(request)
        if held is not None:
            held.ended += 1

    def read(self, at_ns: int, request: str, readers: int) -> None:
        """One of ``readers`` readers says that it has the blocks of ``request``."""
        held = self._held.get(request) or self._early_of(at_ns, request)
        held.due = readers
        held.ended += 1

    def _early_of(self, at_ns: int, request: str) -> Held:
        held = self._early.get(request)
        if held is None:
            held = Held(None, self._context.losses.untold)
            self._early.put(request, at_ns, held)
        return held

    def released(self, at_ns: int, requests: frozenset[str]) -> None:
        """The engine gave the blocks of ``requests`` back."""
        for request in requests:
            held = self._held.pop(request)
            if held is None:
                self._early_of(at_ns, request).released_ns = at_ns
            else:
                self._release(at_ns, request, held)

    def _release(self, at_ns: int, request: str, held: Held) -> None:
        self._met.pop(held.decode_request)
        if not held.taken:
            self._finished.pop(base_request_id(request))
        if held.taken:
            self._held_span(at_ns, held, names.RELEASE_DONE)
        elif self._context.losses.untold > held.untold_before:  # perhaps that somebody was done
            self._held_span(at_ns, held, None, (names.LOST_REASON,))
        else:
            self._held_span(at_ns, held, names.RELEASE_LEASE_EXPIRED)

    def _held_span(self, end_ns: int, held: Held, reason: str | None, lost: tuple[str, ...] = ()) -> None:
        if self._rank != 0:
            return  # every rank holds its share for the same time: one span and one observation a request
        carrier = held.carrier
        assert carrier is not None
        finished_ns = self._context.stamp_ns(carrier, held.since_ns)
        # D keeps blocks for a next turn that may never come: that its time ends is no failure.
        expired = reason == names.RELEASE_LEASE_EXPIRED and not self._context.decodes
        self._context.span(
            names.SPAN_BLOCKS_HELD,
            carrier,
            finished_ns,
            end_ns,
            {names.ATTR_RANK: self._rank, **({names.ATTR_RELEASE_REASON: reason} if reason else {})},
            error=reason if expired else None,
            lost=(*self._context.lost_stamp(carrier), *lost),
        )
        if reason is not None:
            seconds = (end_ns - finished_ns) / 1e9
            self._context.samples.add(metrics.BLOCKS_HELD_SECONDS, seconds, carrier.mode, reason)
        if expired:
            self._context.samples.add(metrics.LEASES_EXPIRED, 1, carrier.mode)

    def _never_released(self, held: Held) -> None:
        self._held_span(held.since_ns, held, None, (names.LOST_END,))

    def _never_met(self, finished: Finished) -> None:
        at_ns, attributes = finished.at_ns, {names.ATTR_RANK: self._rank}
        self._context.span(names.SPAN_RENDEZVOUS, finished.carrier, at_ns, at_ns, attributes, lost=(names.LOST_END,))

    def _meet(self, meeting: Meeting) -> None:
        self._met.put(meeting.registration.request, meeting.met_ns, meeting)
        finished, registration = meeting.finished, meeting.registration
        held = self._held.get(finished.request)
        if held is not None:
            held.decode_request = registration.request
        if not registration.known:
            self._never_met(finished)
            return
        registration_last = registration.at_ns > finished.at_ns
        last = names.LAST_ARRIVAL_REGISTRATION if registration_last else names.LAST_ARRIVAL_PREFILL
        first_ns = min(finished.at_ns, registration.at_ns)
        link = registration.span()
        self._context.span(
            names.SPAN_RENDEZVOUS,
            finished.carrier,
            first_ns,
            meeting.met_ns,
            {
                names.ATTR_RANK: self._rank,
                names.ATTR_LAST_ARRIVAL: last,
                names.ATTR_PEER_ENGINE_ID: registration.engine,
            },
            links=[link] if link else [],
        )
        self._context.samples.add(metrics.RENDEZVOUS, 1, last)
        self._context.samples.add(metrics.RENDEZVOUS_WAIT_SECONDS, (meeting.met_ns - first_ns) / 1e9, last)

    def idle(self, at_ns: int) -> None:
        for waiting in (self._finished, self._registered, self._met, self._held, self._early):
            waiting.expire(at_ns)
