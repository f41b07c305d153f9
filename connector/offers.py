"""P's side: finished prefills meet registrations, and blocks are held until somebody has them.

Runs on the drain thread of P's worker; times are monotonic nanoseconds. Prefill and registration are paired as
upstream pairs them: by request id without the random suffix.
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
    carrier: Carrier  # its stamp is the instant prefill finished
    taken: bool = False


class Offers:
    """Prefills waiting for registrations, registrations waiting for prefills, blocks waiting to be released."""

    def __init__(self, context: EngineContext, rank: int) -> None:
        self._context = context
        self._rank = rank
        self._finished: Waiting[str, Finished] = Waiting(context.losses)
        self._registered: Waiting[str, Registration] = Waiting(context.losses)
        self._met: Waiting[str, Meeting] = Waiting(context.losses)
        self._held: Waiting[str, Held] = Waiting(context.losses)

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
        arrival = Registration(at_ns, request, agent, data.get("decode_engine_id", ""), traceparent)
        finished = self._finished.pop(base_request_id(request))
        if finished is not None:
            self._meet(Meeting(finished, arrival))
        elif self._met.get(request) is None:  # another rank of D may register the same request again
            self._registered.put(base_request_id(request), at_ns, arrival)

    def meeting(self, decode_request: str) -> Meeting | None:
        return self._met.get(decode_request)

    def held(self, at_ns: int, request: str, carrier: Carrier) -> None:
        """P keeps the blocks of ``request`` until they are taken or their lease ends."""
        self._held.put(request, at_ns, Held(carrier))

    def taken(self, request: str) -> bool:
        """Somebody has the blocks (a WRITE ended, or a reader said so); returns whether they were held here."""
        held = self._held.get(request)
        if held is not None:
            held.taken = True
        return held is not None

    def released(self, at_ns: int, requests: frozenset[str]) -> None:
        """The engine gave the blocks of ``requests`` back."""
        for request in requests:
            held = self._held.pop(request)
            if held is None:
                self._context.losses.unmatched += 1
                continue
            reason = names.RELEASE_DONE if held.taken else names.RELEASE_LEASE_EXPIRED
            self._release(at_ns, held.carrier, reason)
            if not held.taken:
                self._finished.pop(base_request_id(request))

    def _release(self, at_ns: int, carrier: Carrier, reason: str) -> None:
        if self._rank != 0:
            return  # every rank holds its share for the same time: one span and one observation a request
        finished_ns = self._context.clock.monotonic(carrier.stamp_ns)
        expired = reason == names.RELEASE_LEASE_EXPIRED
        self._context.span(
            names.SPAN_BLOCKS_HELD,
            carrier,
            finished_ns,
            at_ns,
            {names.ATTR_RANK: self._rank, names.ATTR_RELEASE_REASON: reason},
            error=reason if expired else None,
        )
        seconds = (at_ns - finished_ns) / 1e9
        self._context.samples.add(metrics.BLOCKS_HELD_SECONDS, seconds, carrier.mode, reason)
        if expired:
            self._context.samples.add(metrics.LEASES_EXPIRED, 1, carrier.mode)

    def _meet(self, meeting: Meeting) -> None:
        self._met.put(meeting.registration.request, meeting.met_ns, meeting)
        finished, registration = meeting.finished, meeting.registration
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
        for waiting in (self._finished, self._registered, self._met, self._held):
            waiting.expire(at_ns)
