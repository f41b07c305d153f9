"""Offsets between the clocks of a request's processes, estimated from the request's own messages.

Processes with one ``kvpath.boot_id`` share one clock: their offset is exactly 0. Between two clocks every message
bounds the offset from one side, because nothing is received before it was sent. With messages in both directions
the true offset lies in an interval, and all intervals together are a system of difference constraints, which is
closed by shortest paths (a bound between P and D also follows from P-router and router-D).

Which offset inside the interval? 0 when the interval contains it: hosts are normally disciplined by NTP or PTP, so
"the clocks are right" is the likeliest point, and measured times stay as they were measured. Otherwise the clocks
are proven wrong, nothing favours either end, and the midpoint has the smallest possible error. The uncertainty is
always the distance to the farther end of the interval: half the width at a midpoint, more when 0 lies off-centre.
``None`` means that some message is missing and one side is unbounded.

An interval whose lower bound exceeds its upper bound contradicts itself (a clock was stepped, a span is wrong). It is
reported in ``conflicts``, the midpoint is used, and the contradiction is part of the uncertainty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from connector import names
from stack.analysis.request import SPAN_LLM_REQUEST, RequestSpans
from stack.analysis.trace import Resource, Span, Trace

Domain = str  # a clock: a boot id, or what stands for it when a process does not name one


@dataclass(frozen=True, slots=True)
class Message:
    """Something sent by one process and received by another; times on their own clocks."""

    what: str
    sender: Domain
    sent_ns: int
    receiver: Domain
    received_ns: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """The tightest message for each (sender, receiver): smallest ``received - sent`` in ns, and which it was."""

    slack: Mapping[tuple[Domain, Domain], tuple[int, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Bounds:
        slack: dict[tuple[Domain, Domain], tuple[int, str]] = {}
        for m in messages:
            found = (m.received_ns - m.sent_ns, m.what)
            key = (m.sender, m.receiver)
            if key not in slack or found < slack[key]:
                slack[key] = found
        return cls(slack)

    def pooled(self, other: Bounds) -> Bounds:
        """Returns the tighter of both for every pair: valid as long as the offset did not drift between them."""
        slack = dict(self.slack)
        for key, found in other.slack.items():
            slack[key] = min(found, slack.get(key, found))
        return Bounds(slack)


@dataclass(frozen=True, slots=True)
class Clocks:
    """The chosen offsets: nanoseconds to add to a process's times to bring them to the reference clock.

    ``intervals`` are the bounds (lower, upper) of each offset, ``None`` where unbounded. ``uncertainty_ns`` bounds
    the error of any difference of two aligned times (``None``: unknown).
    """

    reference: Domain
    offsets: Mapping[Domain, int]
    intervals: Mapping[Domain, tuple[int | None, int | None]] = field(default_factory=dict)
    uncertainty_ns: int | None = 0
    conflicts: tuple[str, ...] = ()


def domain_names(trace: Trace) -> dict[int, Domain]:
    """Returns the clock of every resource of the trace, keyed by ``id(resource)``.

    A resource without a boot id (vLLM's own spans) takes the one that others of its service or host agree on.
    """
    resources = {id(span.resource): span.resource for span in trace.spans}
    known: dict[tuple[str, str], set[str]] = {}
    for resource in resources.values():
        if boot_id := resource.boot_id:
            known.setdefault(("service", resource.service_name), set()).add(boot_id)
            known.setdefault(("host", resource.host_name), set()).add(boot_id)
    return {key: _domain(resource, known) for key, resource in resources.items()}


def path_clocks(trace: Trace, domains: Mapping[int, Domain]) -> set[Domain]:
    """Returns the clocks that a request's path goes over.

    Whoever sent the request may have spans in the trace too: of a clock that no message bounds and that nothing needs.
    """
    return {
        domains[id(span.resource)]
        for span in trace.spans
        if names.ATTR_REQUEST_ID in span.attributes or span.name == SPAN_LLM_REQUEST
    }


def _domain(resource: Resource, known: Mapping[tuple[str, str], set[str]]) -> Domain:
    if boot_id := resource.boot_id:
        return boot_id
    keys = [("host", resource.host_name), ("service", resource.service_name)]
    for key in keys:
        if key[1] and len(known.get(key, ())) == 1:
            return next(iter(known[key]))
    return next((f"{kind} {name}" for kind, name in keys if name), "unknown")


def messages(request: RequestSpans, domains: Mapping[int, Domain]) -> Iterator[Message]:
    """Yields what this request's processes told each other, on unaligned times."""

    def message(what: str, sender: Span | None, sent: int | None, receiver: Span | None, received: int | None):
        if sender is not None and receiver is not None and sent is not None and received is not None:
            yield Message(what, domains[id(sender.resource)], sent, domains[id(receiver.resource)], received)

    def start(span: Span | None) -> int | None:
        return span.start_ns if span else None

    def end(span: Span | None) -> int | None:
        return span.end_ns if span else None

    r = request
    first_token = r.first_token_ns
    allocated = next(iter(r.registers), None) or next((t.span for t in r.transfers), None)
    if r.mode != names.MODE_PLAIN:
        yield from message("prefill request", r.leg_prefill, start(r.leg_prefill), r.queue, start(r.queue))
        yield from message("prefill response", r.compute, end(r.compute), r.leg_prefill, end(r.leg_prefill))
        yield from message("decode request", r.leg_decode, start(r.leg_decode), allocated, start(allocated))
    else:
        yield from message("decode request", r.leg_decode, start(r.leg_decode), r.queue, start(r.queue))
    yield from message("first token", r.first_step, end(r.first_step), r.root, first_token)
    if r.mode == names.MODE_PUSH:
        yield from _push_messages(r, domains)
    elif r.blocks_held and r.blocks_held.attributes.get(names.ATTR_RELEASE_REASON) == names.RELEASE_DONE:
        for transfer in r.transfers:
            yield from message("READ", transfer.submit, start(transfer.submit), r.blocks_held, r.blocks_held.end_ns)


def _push_messages(request: RequestSpans, domains: Mapping[int, Domain]) -> Iterator[Message]:
    if request.registers:
        sent = min(request.registers, key=lambda s: s.end_ns)
        for met in request.rendezvous:
            last = met.attributes.get(names.ATTR_LAST_ARRIVAL)
            arrived = met.end_ns if last == names.LAST_ARRIVAL_REGISTRATION else met.start_ns
            yield Message("registration", domains[id(sent.resource)], sent.end_ns, domains[id(met.resource)], arrived)
    for waiting in request.awaits:
        for event in waiting.events:
            rank = event.attributes.get(names.ATTR_PRODUCER_RANK)
            known = isinstance(rank, int) and rank >= 0  # -1: D could not tell whose completion it was
            posted = [t.submit for t in request.transfers if t.submit and (not known or rank == t.rank)]
            if event.name == names.EVENT_COMPLETION and posted:
                # Posted, not ended: P sees its WRITE end up to half a round trip after D has the notification.
                write = min(posted, key=lambda s: s.start_ns)
                yield Message(
                    "WRITE", domains[id(write.resource)], write.start_ns, domains[id(waiting.resource)], event.time_ns
                )


def estimate(bounds: Bounds, domains: Iterable[Domain], reference: Domain) -> Clocks:
    """Chooses an offset for every clock in ``domains`` relative to ``reference``."""
    clocks = sorted(set(domains) | {reference})
    conflicts = [
        f"{what} was received {-ns} ns before it was sent, on one clock ({a})"
        for (a, b), (ns, what) in sorted(bounds.slack.items())
        if a == b and ns < 0 and a in clocks
    ]
    if len(clocks) == 1:
        return Clocks(reference, {reference: 0}, {reference: (0, 0)}, 0, tuple(conflicts))
    direct = {(a, b): ns for (a, b), (ns, _) in bounds.slack.items() if a != b and a in clocks and b in clocks}
    closed = _close(direct, clocks)
    if any(closed[a, a] < 0 for a in clocks if (a, a) in closed):
        return _contradictory(bounds, direct, clocks, reference, conflicts)
    intervals = {c: _interval(closed, c, reference) for c in clocks}
    offsets = _choose(direct, clocks, reference)
    errors = [_distance(offsets[a] - offsets[b], _interval(closed, a, b)) for a in clocks for b in clocks if a < b]
    uncertainty = None if None in errors else max(e for e in errors if e is not None)
    return Clocks(reference, offsets, intervals, uncertainty, tuple(conflicts))


def _close(direct: Mapping[tuple[Domain, Domain], int], clocks: list[Domain]) -> dict[tuple[Domain, Domain], int]:
    """Tightest upper bound on ``offset[a] - offset[b]`` for every pair (Floyd-Warshall); absent: unbounded."""
    closed = dict(direct)
    for via in clocks:
        for a in clocks:
            for b in clocks:
                if (a, via) in closed and (via, b) in closed:
                    bound = closed[a, via] + closed[via, b]
                    closed[a, b] = min(bound, closed.get((a, b), bound))
    return closed


def _interval(
    closed: Mapping[tuple[Domain, Domain], int], clock: Domain, reference: Domain
) -> tuple[int | None, int | None]:
    if clock == reference:
        return 0, 0
    lower, upper = closed.get((reference, clock)), closed.get((clock, reference))
    return (None if lower is None else -lower), upper


def _choose(direct: Mapping[tuple[Domain, Domain], int], clocks: list[Domain], reference: Domain) -> dict[Domain, int]:
    """Fixes one clock after the other, so that the offsets also respect the bounds between P and D."""
    fixed = dict(direct)
    offsets = {reference: 0}
    for clock in clocks:
        if clock != reference:
            offset = _offset_in(*_interval(_close(fixed, clocks), clock, reference))
            fixed[clock, reference], fixed[reference, clock] = offset, -offset
            offsets[clock] = offset
    return offsets


def _offset_in(lower: int | None, upper: int | None) -> int:
    if (lower is None or lower <= 0) and (upper is None or upper >= 0):
        return 0
    if lower is not None and upper is not None:
        return (lower + upper) // 2
    return lower if lower is not None else upper if upper is not None else 0


def _distance(offset: int, interval: tuple[int | None, int | None]) -> int | None:
    lower, upper = interval
    if lower is None or upper is None:
        return None
    return max(abs(offset - lower), abs(upper - offset))


def _contradictory(
    bounds: Bounds,
    direct: Mapping[tuple[Domain, Domain], int],
    clocks: list[Domain],
    reference: Domain,
    conflicts: list[str],
) -> Clocks:
    """No offset satisfies every message: keeps to the direct bounds with the reference and says so."""
    intervals = {c: _interval(direct, c, reference) for c in clocks}
    offsets = {c: _offset_in(*interval) for c, interval in intervals.items()}
    errors = [_distance(offsets[c], intervals[c]) for c in clocks]
    known = [e for e in errors if e is not None]
    for (a, b), ns in sorted(direct.items()):
        aligned = ns + offsets[b] - offsets[a]
        if aligned < 0:
            conflicts.append(
                f"clock bounds contradict: {bounds.slack[a, b][1]} from {a} to {b} misses by {-aligned} ns"
            )
    if not conflicts:
        conflicts.append("clock bounds contradict each other")
    worst = max(known) if len(known) == len(errors) else None
    return Clocks(reference, offsets, intervals, worst, tuple(conflicts))


def align(trace: Trace, clocks: Clocks, domains: Mapping[int, Domain]) -> Trace:
    """Returns the trace with every time on the reference clock."""
    if not any(clocks.offsets.values()):
        return trace
    return Trace(
        trace.trace_id,
        tuple(span.shifted(clocks.offsets.get(domains[id(span.resource)], 0)) for span in trace.spans),
    )
