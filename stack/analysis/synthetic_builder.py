"""What synthetic traces are built with: the durations of a request, and the spans of one trace with their clocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from connector import names
from stack.analysis.request import SPAN_LLM_REQUEST
from stack.analysis.trace import (
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
    # Mode reuse: of ``prompt_tokens`` P reads ``reused_tokens`` back from D.
    reused_tokens: int = 96
    prompt_tokens: int = 128
    reuse_handshake: int = 0  # 0: none
    reuse_prepare: int = 500 * US
    reuse_submit: int = 120 * US
    reuse_flight: int = 6 * MS
    reuse_notify: int = 2 * MS
    kept: int = 30_000 * MS  # by D, after the answer


USUAL = Figures()


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

    def prefill(
        self, f: Figures, leg: str, sent: int, read: int = 0, found: Attributes | None = None
    ) -> tuple[int, str]:
        """P's queue and prefill; returns when P finished, and the compute span.

        ``read``: mode reuse, from allocated to the end of ``reuse_notify``. ``found``: what P says of an offer.
        """
        received = sent + f.prefill_hop
        allocated = received + f.prefill_queue
        scheduled = allocated + read
        finished = scheduled + f.prefill
        prompt: Attributes = {names.ATTR_PROMPT_TOKENS: f.prompt_tokens}
        reused = f.reused_tokens if read else 0
        tokens = {**prompt, names.ATTR_CACHED_TOKENS: reused, names.ATTR_EXTERNAL_TOKENS: reused}
        offer = {**prompt, **(found or {})}
        self.add(PREFILL, names.SPAN_PREFILL_QUEUE, received, allocated, leg, attributes=offer)
        compute = self.add(PREFILL, names.SPAN_PREFILL_COMPUTE, scheduled, finished, leg, attributes=tokens)
        self.add(PREFILL, SPAN_LLM_REQUEST, received, finished + f.worker_hop, leg, kind=KIND_SERVER)
        return finished, compute

    def held(self, finished: int, freed: int, leg: str) -> None:
        reason = {names.ATTR_RELEASE_REASON: names.RELEASE_DONE}
        self.add(PREFILL, names.SPAN_BLOCKS_HELD, finished, freed, leg, attributes=reason)
