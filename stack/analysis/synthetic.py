"""Builds traces that follow the trace contract from a handful of durations, for the benchmark and for tests.

The builder lays the request out on one true time axis and only then stamps it with each host's clock, so what the
analysis should find is known beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from connector import names
from stack.analysis.request import SPAN_LLM_REQUEST
from stack.analysis.trace import (
    KIND_CLIENT,
    KIND_INTERNAL,
    KIND_SERVER,
    Attributes,
    AttributeValue,
    Event,
    Link,
    Resource,
    Scope,
    Span,
    Trace,
)

US, MS = 1_000, 1_000_000
EPOCH_NS = 1_790_000_000_000_000_000
ROUTER, PREFILL, DECODE = names.SERVICE_ROUTER, names.SERVICE_PREFILL, names.SERVICE_DECODE


@dataclass(frozen=True, slots=True)
class Figures:
    """Durations of one request in nanoseconds; the defaults are those of a small model on a CPU."""

    route: int = 900 * US
    prefill_hop: int = 4 * MS  # prefill leg sent → received by P
    prefill_queue: int = 1 * MS
    prefill: int = 800 * MS
    decode_hop: int = 5 * MS  # decode leg sent → blocks allocated on D
    register: int = 2 * MS
    registration_hop: int = 300 * US  # registration sent → received by P's worker
    worker_hop: int = 200 * US  # prefill finished → known to P's worker
    response_hop: int = 3 * MS  # prefill finished → the router has P's response
    late_route: int = 400 * US  # pull: P's response → decode leg sent
    handshake: int = 0  # 0: none
    handshake_lead: int = 0  # so much of the handshake ran before the transfer could start
    prepare: int = 600 * US
    submit: int = 150 * US
    flight: int = 9 * MS
    stagger: int = 1 * MS  # each further rank's transfer takes so much longer
    poll_gap: int = 0  # the transfer really ended so much before it was seen to end
    completion_hop: int = 50 * US  # transfer ended → completion counted on D's worker
    notify: int = 1 * MS  # completion counted (push) or flight ended (pull) → D's scheduler knows
    first_step: int = 60 * MS
    deliver: int = 2 * MS
    tail: int = 1500 * MS  # the rest of the answer


@dataclass(slots=True)
class Builder:
    """Collects the spans of one trace; times are nanoseconds after the request came in."""

    mode: str
    number: int = 1
    ranks: int = 1
    boot_ids: Mapping[str, str] = field(default_factory=dict)  # service → boot id; absent: all share one
    clocks: Mapping[str, int] = field(default_factory=dict)  # service → what its clock shows too much
    spans: list[Span] = field(default_factory=list)
    _resources: dict[str, Resource] = field(default_factory=dict)

    @property
    def trace_id(self) -> str:
        return f"{self.number:032x}"

    @property
    def request_id(self) -> str:
        return f"req-{self.number}"

    def trace(self) -> Trace:
        return Trace(self.trace_id, tuple(self.spans))

    def resource(self, service: str) -> Resource:
        if service not in self._resources:
            process = {ROUTER: 11, PREFILL: 21, DECODE: 31}[service]
            self._resources[service] = Resource(
                {
                    "service.name": service,
                    "service.instance.id": f"{service}-0",
                    "host.name": f"host-{self.boot_ids.get(service, 'a')}",
                    "process.pid": process,
                    names.ATTR_BOOT_ID: self.boot_ids.get(service, "boot-a"),
                }
            )
        return self._resources[service]

    def add(
        self,
        service: str,
        name: str,
        start: int,
        end: int,
        parent: str = "",
        *,
        kind: int = KIND_INTERNAL,
        attributes: Attributes | None = None,
        events: tuple[Event, ...] = (),
        links: tuple[str, ...] = (),
    ) -> str:
        """Adds a span and returns its id; event times are relative as well."""
        shift = EPOCH_NS + self.clocks.get(service, 0)
        span_id = f"{self.number % 2**32:08x}{len(self.spans) + 1:08x}"
        own: dict[str, AttributeValue] = {names.ATTR_MODE: self.mode, names.ATTR_REQUEST_ID: self.request_id}
        if service != ROUTER:
            own[names.ATTR_ENGINE_ID] = f"{service}-0"
        span = Span(
            trace_id=self.trace_id,
            span_id=span_id,
            parent_span_id=parent,
            name=name,
            start_ns=shift + start,
            end_ns=shift + end,
            kind=kind,
            attributes=own | dict(attributes or {}),
            events=tuple(Event(e.name, shift + e.time_ns, e.attributes) for e in events),
            links=tuple(Link(self.trace_id, target) for target in links),
            resource=self.resource(service),
            scope=Scope("kvpath"),
        )
        self.spans.append(span)
        return span_id

    def root(self, end: int, first_token: int) -> str:
        event = Event(names.EVENT_FIRST_TOKEN, first_token)
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "smollm2"}
        return self.add(ROUTER, "chat smollm2", 0, end, kind=KIND_SERVER, events=(event,), attributes=attributes)

    def route(self, start: int, end: int, parent: str, phase: str) -> None:
        chosen = {"prefill": ("P",), "decode": ("D",), "both": ("P", "D")}[phase]
        attributes: Attributes = {names.ATTR_PHASE: phase, names.ATTR_POLICY: "least_outstanding"}
        self.add(ROUTER, names.SPAN_ROUTE, start, end, parent, attributes={**attributes, names.ATTR_CHOSEN: chosen})

    def phases(self, service: str, name: str, parent: str, at: tuple[int, int, int, int, int], gap: int) -> None:
        """The three phases of a transfer: ``at`` are prepare start, end, submit end, flight end, rank."""
        start, prepared, posted, ended, rank = at
        attributes = {names.ATTR_RANK: rank}
        self.add(service, name + names.SUFFIX_PREPARE, start, prepared, parent, attributes=attributes)
        self.add(service, name + names.SUFFIX_SUBMIT, prepared, posted, parent, attributes=attributes)
        flight = {**attributes, names.ATTR_POLL_GAP: gap}
        self.add(service, name + names.SUFFIX_FLIGHT, posted, ended, parent, attributes=flight)

    def prefill(self, f: Figures, leg: str, sent: int) -> tuple[int, str]:
        """P's queue and prefill; returns when P finished, and the compute span."""
        received = sent + f.prefill_hop
        scheduled = received + f.prefill_queue
        finished = scheduled + f.prefill
        self.add(
            PREFILL, names.SPAN_PREFILL_QUEUE, received, scheduled, leg, attributes={names.ATTR_PROMPT_TOKENS: 128}
        )
        compute = self.add(PREFILL, names.SPAN_PREFILL_COMPUTE, scheduled, finished, leg)
        self.add(PREFILL, SPAN_LLM_REQUEST, received, finished + f.worker_hop, leg, kind=KIND_SERVER)
        return finished, compute

    def held(self, finished: int, freed: int, leg: str) -> None:
        reason = {names.ATTR_RELEASE_REASON: names.RELEASE_DONE}
        self.add(PREFILL, names.SPAN_BLOCKS_HELD, finished, freed, leg, attributes=reason)


def push_trace(f: Figures = Figures(), **options: object) -> Trace:
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


def pull_trace(f: Figures = Figures(), **options: object) -> Trace:
    """Builds a pull request."""
    b = Builder(names.MODE_PULL, **options)  # type: ignore[arg-type]
    finished_at = f.route + f.prefill_hop + f.prefill_queue + f.prefill
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
    _, compute = b.prefill(f, leg_p, f.route)
    for rank in range(b.ranks):
        own = {names.ATTR_RANK: rank}
        if f.handshake:
            began = allocated - f.handshake_lead
            b.add(DECODE, names.SPAN_HANDSHAKE, began, began + f.handshake, leg_d, attributes=own)
        moved: dict[str, AttributeValue] = {
            **own,
            names.ATTR_OPERATION: names.OPERATION_READ,
            names.ATTR_BYTES: 9_437_184,
        }
        read = b.add(DECODE, names.SPAN_READ, allocated, ends[rank], leg_d, attributes=moved, links=(compute,))
        b.phases(DECODE, names.SPAN_READ, read, (start, start + f.prepare, posted, ends[rank], rank), f.poll_gap)
    b.add(DECODE, names.SPAN_FIRST_STEP, step, step + f.first_step, leg_d)
    b.add(DECODE, SPAN_LLM_REQUEST, allocated - f.decode_hop // 4, first_token + f.tail - 1, leg_d, kind=KIND_SERVER)
    b.held(finished_at, ends[-1] + f.completion_hop, leg_p)
    return b.trace()


def plain_trace(f: Figures = Figures(), **options: object) -> Trace:
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
