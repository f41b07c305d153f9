"""What ran beside the critical path, hidden behind P's queue and prefill: the time that push gains.

Every kind is clipped to the time before prefill ended, because only there did it cost nothing. Times must be aligned
(:mod:`stack.analysis.clock`). Kinds may overlap each other; ``overlapped_total`` counts every instant once.
"""

from __future__ import annotations

from collections.abc import Iterable

from stack.analysis.request import RequestSpans

OVERLAP_REGISTRATION = "registration"  # D's registration, from allocated to sent
OVERLAP_HANDSHAKE = "handshake"  # connecting to the peer, on either side
OVERLAP_DECODE_HOP = "decode_leg_hop"  # decode leg sent by the router → blocks allocated on D
OVERLAP_DESCRIPTORS = "descriptor_work"  # preparing descriptor lists
OVERLAP_KINDS = (OVERLAP_DECODE_HOP, OVERLAP_REGISTRATION, OVERLAP_HANDSHAKE, OVERLAP_DESCRIPTORS)
OVERLAP_WORDS = {
    OVERLAP_DECODE_HOP: "D's leg sent by the router → blocks allocated on D",
    OVERLAP_REGISTRATION: "blocks allocated on D → their registration sent to P",
    OVERLAP_HANDSHAKE: "two engines connecting",
    OVERLAP_DESCRIPTORS: "descriptor lists of a transfer made",
}

Interval = tuple[int, int]


def overlapped(request: RequestSpans) -> dict[str, int]:
    """Returns nanoseconds hidden behind prefill for every kind of :data:`OVERLAP_KINDS`."""
    intervals = _intervals(request)
    return {kind: union_length(intervals.get(kind, ())) for kind in OVERLAP_KINDS}


def overlapped_total(request: RequestSpans) -> int:
    """Returns nanoseconds in which at least one kind ran behind prefill."""
    return union_length(i for members in _intervals(request).values() for i in members)


def union_length(intervals: Iterable[Interval]) -> int:
    """Returns how many nanoseconds a set of half-open intervals covers; empty and reversed ones cover none."""
    covered, reached = 0, None
    for start, end in sorted(intervals):
        if reached is None or start > reached:
            reached = start
        if end > reached:
            covered += end - reached
            reached = end
    return covered


def _intervals(request: RequestSpans) -> dict[str, list[Interval]]:
    """Every kind's intervals, clipped to the time between the request's arrival and the end of prefill."""
    if request.compute is None or request.root is None:
        return {}
    first, last = request.root.start_ns, request.compute.end_ns
    # In reuse P connects for its own READ, and waits for it: that is on the path.
    beside = request.decode_handshakes + (() if request.reuse_transfers else request.prefill_handshakes)
    raw: dict[str, list[Interval]] = {
        OVERLAP_REGISTRATION: [(s.start_ns, s.end_ns) for s in request.registers],
        OVERLAP_HANDSHAKE: [(s.start_ns, s.end_ns) for s in beside],
        OVERLAP_DESCRIPTORS: [(t.prepare.start_ns, t.prepare.end_ns) for t in request.transfers if t.prepare],
        OVERLAP_DECODE_HOP: [],
    }
    if request.leg_decode is not None and request.registers:
        allocated = min(s.start_ns for s in request.registers)
        raw[OVERLAP_DECODE_HOP] = [(request.leg_decode.start_ns, allocated)]
    return {
        kind: [(max(start, first), min(end, last)) for start, end in members if start < last and end > first]
        for kind, members in raw.items()
    }
