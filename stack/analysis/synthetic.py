"""Builds traces that follow the trace contract from a handful of durations, for the benchmark and for tests.

The builder lays the request out on one true time axis and only then stamps it with each host's clock, so what the
analysis should find is known beforehand.
"""

from __future__ import annotations

from connector import names
from stack.analysis.request import SPAN_LLM_REQUEST
from stack.analysis.synthetic_builder import DECODE, EPOCH_NS, MS, PREFILL, ROUTER, US, USUAL, Builder, Figures
from stack.analysis.trace import KIND_CLIENT, KIND_SERVER, Attributes, AttributeValue, Event, Trace

__all__ = ["EPOCH_NS", "MS", "US", "Builder", "Figures", "plain_trace", "pull_trace", "push_trace", "reuse_trace"]


def push_trace(f: Figures = USUAL, **options: object) -> Trace:
    """Builds a push request; ``options`` are :class:`Builder`'s fields (``number``, ``ranks``, ``clocks``, …)."""
    b = Builder(names.MODE_PUSH, **options)  # type: ignore[arg-type]
    finished_at = f.route + f.prefill_hop + f.prefill_queue + f.prefill
    registered = f.route + f.decode_hop + f.register + f.registration_hop
    known = finished_at + f.worker_hop
    registration_last = registered > known
    ready = registered if registration_last else finished_at
    start = ready + max(f.handshake - f.handshake_lead, 0)
    posted = start + f.prepare + f.submit
    ends = [posted + f.flight + rank * f.stagger for rank in range(b.ranks)]
    counted = [end - f.poll_gap + f.completion_hop for end in ends]
    step = counted[-1] + f.notify
    first_token = step + f.first_step + f.deliver
    root = b.root(first_token + f.tail, first_token)
    b.route(f.route // 3, f.route // 2, root, "both")
    leg_p = b.add(ROUTER, names.SPAN_LEG_PREFILL, f.route, finished_at + f.response_hop, root, kind=KIND_CLIENT)
    leg_d = b.add(ROUTER, names.SPAN_LEG_DECODE, f.route, first_token + f.tail, root, kind=KIND_CLIENT)
    b.prefill(f, leg_p, f.route)
    allocated = f.route + f.decode_hop
    register = b.add(DECODE, names.SPAN_REGISTER, allocated, allocated + f.register, leg_d)
    writes = []
    for rank in range(b.ranks):
        met: dict[str, AttributeValue] = {
            names.ATTR_RANK: rank,
            names.ATTR_LAST_ARRIVAL: names.LAST_ARRIVAL_REGISTRATION
            if registration_last
            else names.LAST_ARRIVAL_PREFILL,
        }
        first, second = sorted((registered, known))
        b.add(PREFILL, names.SPAN_RENDEZVOUS, first, second, leg_p, attributes=met)
        if f.handshake:
            began = ready - f.handshake_lead
            own = {names.ATTR_RANK: rank}
            b.add(PREFILL, names.SPAN_HANDSHAKE, began, began + f.handshake, leg_p, attributes=own)
        moved: dict[str, AttributeValue] = {
            names.ATTR_RANK: rank,
            names.ATTR_OPERATION: names.OPERATION_WRITE,
            names.ATTR_BYTES: 9_437_184,
        }
        write = b.add(PREFILL, names.SPAN_WRITE, start, ends[rank], leg_p, attributes=moved, links=(register,))
        b.phases(PREFILL, names.SPAN_WRITE, write, (start, start + f.prepare, posted, ends[rank], rank), f.poll_gap)
        writes.append(write)
    events = tuple(_completion(rank, b.ranks, counted[rank]) for rank in range(b.ranks))
    b.add(DECODE, names.SPAN_AWAIT, allocated + f.register, counted[-1], leg_d, events=events, links=tuple(writes))
    b.add(DECODE, names.SPAN_FIRST_STEP, step, step + f.first_step, leg_d)
    b.add(DECODE, SPAN_LLM_REQUEST, allocated - f.decode_hop // 4, first_token + f.tail - 1, leg_d, kind=KIND_SERVER)
    b.held(finished_at, ends[-1] + f.worker_hop, leg_p)
    return b.trace()


def _completion(rank: int, expected: int, time_ns: int) -> Event:
    counts = {names.ATTR_COMPLETION_COUNT: rank + 1, names.ATTR_COMPLETION_EXPECTED: expected}
    return Event(names.EVENT_COMPLETION, time_ns, {names.ATTR_PRODUCER_RANK: rank, **counts})


def pull_trace(f: Figures = USUAL, **options: object) -> Trace:
    """Builds a pull request."""
    return _pulled(Builder(names.MODE_PULL, **options), f, None)  # type: ignore[arg-type]


def reuse_trace(f: Figures = USUAL, outcome: str = names.REUSE_HIT, **options: object) -> Trace:
    """Builds a request of mode reuse; ``outcome`` is what was found of the turn before."""
    return _pulled(Builder(names.MODE_REUSE, **options), f, outcome)  # type: ignore[arg-type]


def _pulled(b: Builder, f: Figures, outcome: str | None) -> Trace:
    read = _back_ns(f, b.ranks) if outcome == names.REUSE_HIT else 0
    finished_at = f.route + f.prefill_hop + f.prefill_queue + read + f.prefill
    answered = finished_at + f.response_hop
    sent = answered + f.late_route
    allocated = sent + f.decode_hop
    start = allocated + max(f.handshake - f.handshake_lead, 0)
    posted = start + f.prepare + f.submit
    ends = [posted + f.flight + rank * f.stagger for rank in range(b.ranks)]
    step = ends[-1] + f.notify
    first_token = step + f.first_step + f.deliver
    root = b.root(first_token + f.tail, first_token)
    b.route(f.route // 3, f.route // 2, root, "prefill")
    leg_p = b.add(ROUTER, names.SPAN_LEG_PREFILL, f.route, answered, root, kind=KIND_CLIENT)
    b.route(answered, answered + f.late_route // 2, root, "decode")
    leg_d = b.add(ROUTER, names.SPAN_LEG_DECODE, sent, first_token + f.tail, root, kind=KIND_CLIENT)
    _, compute = b.prefill(f, leg_p, f.route, read, _found(b, f, root, outcome))
    if read:
        _read_back(b, f, leg_p)
    for rank in range(b.ranks):
        own = {names.ATTR_RANK: rank}
        if f.handshake:
            began = allocated - f.handshake_lead
            b.add(DECODE, names.SPAN_HANDSHAKE, began, began + f.handshake, leg_d, attributes=own)
        moved = {**own, **_READ}
        reading = b.add(DECODE, names.SPAN_READ, allocated, ends[rank], leg_d, attributes=moved, links=(compute,))
        b.phases(DECODE, names.SPAN_READ, reading, (start, start + f.prepare, posted, ends[rank], rank), f.poll_gap)
    b.add(DECODE, names.SPAN_FIRST_STEP, step, step + f.first_step, leg_d)
    b.add(DECODE, SPAN_LLM_REQUEST, allocated - f.decode_hop // 4, first_token + f.tail - 1, leg_d, kind=KIND_SERVER)
    b.held(finished_at, ends[-1] + f.completion_hop, leg_p)
    if outcome is not None:
        done: Attributes = {names.ATTR_RELEASE_REASON: names.RELEASE_DONE}
        ended = first_token + f.tail - 1
        b.add(DECODE, names.SPAN_BLOCKS_HELD, ended, ended + f.kept, leg_d, attributes=done)
    return b.trace()


_READ: Attributes = {names.ATTR_OPERATION: names.OPERATION_READ, names.ATTR_BYTES: 9_437_184}


def _back_ns(f: Figures, ranks: int) -> int:
    """From P's blocks allocated to first scheduled."""
    stages = f.reuse_handshake + f.reuse_prepare + f.reuse_submit + f.reuse_flight + f.reuse_notify
    return stages + (ranks - 1) * f.stagger


def _found(b: Builder, f: Figures, root: str, outcome: str | None) -> Attributes | None:
    """The router's look at what was kept; returns what P says of it."""
    if outcome is None:
        return None
    known = outcome != names.REUSE_MISS
    offered = f.reused_tokens if known else 0
    looked: dict[str, AttributeValue] = {names.ATTR_REUSE_OUTCOME: outcome, names.ATTR_REUSE_TOKENS: offered}
    if known:
        looked[names.ATTR_REUSE_AGE] = 12.5
    b.add(ROUTER, names.SPAN_REUSE_LOOKUP, f.route // 8, f.route // 4, root, attributes=looked)
    if outcome not in (names.REUSE_HIT, names.REUSE_EDITED):
        return None
    matched = offered if outcome == names.REUSE_HIT else 0
    return {
        names.ATTR_REUSE_OUTCOME: outcome,
        names.ATTR_REUSE_TOKENS: offered,
        names.ATTR_REUSE_MATCHED_TOKENS: matched,
    }


def _read_back(b: Builder, f: Figures, leg: str) -> None:
    """P's READ of what D kept, on every rank."""
    allocated = f.route + f.prefill_hop + f.prefill_queue
    start = allocated + f.reuse_handshake
    prepared = start + f.reuse_prepare
    posted = prepared + f.reuse_submit
    for rank in range(b.ranks):
        own: Attributes = {names.ATTR_RANK: rank}
        if f.reuse_handshake:
            b.add(PREFILL, names.SPAN_HANDSHAKE, allocated, start, leg, attributes=own)
        end = posted + f.reuse_flight + rank * f.stagger
        read = b.add(PREFILL, names.SPAN_READ, allocated, end, leg, attributes={**own, **_READ})
        b.phases(PREFILL, names.SPAN_READ, read, (start, prepared, posted, end, rank), f.poll_gap)


def plain_trace(f: Figures = USUAL, **options: object) -> Trace:
    """Builds a request that D computed alone; only vLLM's span tells about its prefill."""
    b = Builder(names.MODE_PLAIN, **options)  # type: ignore[arg-type]
    received = f.route + f.decode_hop
    out = received + f.prefill_queue + f.prefill
    first_token = out + f.deliver
    root = b.root(first_token + f.tail, first_token)
    b.route(f.route // 3, f.route // 2, root, "decode")
    leg = b.add(ROUTER, names.SPAN_LEG_DECODE, f.route, first_token + f.tail, root, kind=KIND_CLIENT)
    times = {
        "gen_ai.latency.time_in_queue": f.prefill_queue / 1e9,
        "gen_ai.latency.time_in_model_prefill": f.prefill / 1e9,
        "gen_ai.latency.time_to_first_token": (out - received) / 1e9,
    }
    b.add(DECODE, SPAN_LLM_REQUEST, received, first_token + f.tail - 1, leg, kind=KIND_SERVER, attributes=times)
    return b.trace()
