"""Says which spans, edges, links, events and attributes of the trace contract a trace lacks.

Pure and independent of clocks: only names, parents, links and attributes are looked at, never times, so a WRITE that
outlives the prefill response is no defect. A handshake is optional (it happens once per pair of workers), and so are
vLLM's own ``llm_request`` spans unless ``engine_spans`` asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from connector import names
from stack.analysis.request import SPAN_LLM_REQUEST, RequestSpans, Transfer, lost, request_spans
from stack.analysis.reuse import lookup_outcome
from stack.analysis.trace import Span, Trace

PHASES = (names.SUFFIX_PREPARE, names.SUFFIX_SUBMIT, names.SUFFIX_FLIGHT)
_ROOT = "request"  # stands for the SERVER span, whose name holds the model

# Where every kvpath span belongs: span name -> name of its parent.
_PREFILL_SIDE = (names.SPAN_PREFILL_QUEUE, names.SPAN_PREFILL_COMPUTE, names.SPAN_BLOCKS_HELD)
_EITHER_LEG = (names.SPAN_LEG_PREFILL, names.SPAN_LEG_DECODE)
PARENTS = {
    names.SPAN_ROUTE: (_ROOT,),
    names.SPAN_REUSE_LOOKUP: (_ROOT,),
    names.SPAN_LEG_PREFILL: (_ROOT,),
    names.SPAN_LEG_DECODE: (_ROOT,),
    **dict.fromkeys(_PREFILL_SIDE, (names.SPAN_LEG_PREFILL,)),
    names.SPAN_RENDEZVOUS: (names.SPAN_LEG_PREFILL,),
    names.SPAN_WRITE: (names.SPAN_LEG_PREFILL,),
    names.SPAN_HANDSHAKE: _EITHER_LEG,
    names.SPAN_REGISTER: (names.SPAN_LEG_DECODE,),
    names.SPAN_AWAIT: (names.SPAN_LEG_DECODE,),
    names.SPAN_READ: (names.SPAN_LEG_DECODE,),
    names.SPAN_FIRST_STEP: (names.SPAN_LEG_DECODE,),
    **{names.SPAN_WRITE + phase: (names.SPAN_WRITE,) for phase in PHASES},
    **{names.SPAN_READ + phase: (names.SPAN_READ,) for phase in PHASES},
    SPAN_LLM_REQUEST: _EITHER_LEG,
}
# In mode reuse P READs too, and D holds blocks too: each under its own leg.
_OWN_LEG = {names.SERVICE_PREFILL: (names.SPAN_LEG_PREFILL,), names.SERVICE_DECODE: (names.SPAN_LEG_DECODE,)}
_BY_EITHER = (names.SPAN_READ, names.SPAN_BLOCKS_HELD)

_COMMON = (names.SPAN_LEG_PREFILL, names.SPAN_LEG_DECODE, *_PREFILL_SIDE, names.SPAN_FIRST_STEP)
REQUIRED = {
    names.MODE_PUSH: (*_COMMON, names.SPAN_REGISTER, names.SPAN_RENDEZVOUS, names.SPAN_WRITE, names.SPAN_AWAIT),
    names.MODE_PULL: (*_COMMON, names.SPAN_READ),
    names.MODE_REUSE: (*_COMMON, names.SPAN_READ),
    names.MODE_PLAIN: (names.SPAN_LEG_DECODE,),
    names.MODE_NONE: (),  # refused: there was nothing to send
}
# What remains when D found the whole prompt in its own prefix cache: no registration, no transfer.
_CACHED = _COMMON
PHASES_ROUTED = {
    names.MODE_PUSH: {"both"},
    names.MODE_PULL: {"prefill", "decode"},
    names.MODE_REUSE: {"prefill", "decode"},
}

_WORKER_SPANS = (names.SPAN_RENDEZVOUS, names.SPAN_WRITE, names.SPAN_READ)


@dataclass(frozen=True, slots=True, order=True)
class Defect:
    """Something a trace lacks: ``kind`` is one of a few words to count by, ``subject`` says what exactly."""

    kind: str  # span | parent | link | event | attribute | resource | root | telemetry | error
    subject: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}"


def defects(trace: Trace, *, engine_spans: bool = False) -> list[Defect]:
    """Returns what ``trace`` lacks, without repetitions; empty means complete.

    A request that failed (its SERVER span has status ERROR) is held to the tree and to ``error.type`` only, because
    a failure legitimately leaves later spans out.
    """
    request = request_spans(trace)
    return defects_of(request, engine_spans=engine_spans)


def defects_of(request: RequestSpans, *, engine_spans: bool = False) -> list[Defect]:
    """The same for spans that are already sorted by their part; aligned or not makes no difference."""
    if request.root is None:
        return [Defect("root", f"no SERVER span of {names.SERVICE_ROUTER}")]
    found = [*_tree(request), *_attributes(request), *_telemetry(request)]
    if not request.root.failed:
        found += _spans(request, engine_spans)
        found += _routes(request)
        if request.first_token_ns is None:
            found.append(Defect("event", names.EVENT_FIRST_TOKEN))
        if request.mode == names.MODE_PUSH:
            found += _push_links(request)
        elif request.mode in (names.MODE_PULL, names.MODE_REUSE):
            found += _pull_links(request)
    return list(dict.fromkeys(found))


def _tree(request: RequestSpans) -> Iterator[Defect]:
    """Every span hangs where the contract says, and nothing hangs in the air."""
    root = request.root
    by_id = {span.span_id: span for span in request.trace.spans}
    for span in request.trace.spans:
        if span is root:
            continue
        wanted = _wanted_parents(span)
        parent = by_id.get(span.parent_span_id)
        if wanted is None:
            if span.parent_span_id and parent is None:
                yield Defect("parent", f"{span.name}: its parent is not in the trace")
        elif (_ROOT if parent is root else parent.name if parent else None) not in wanted:
            yield Defect("parent", f"{span.name} is not under {' or '.join(wanted)}")


def _wanted_parents(span: Span) -> tuple[str, ...] | None:
    if span.name in _BY_EITHER and span.attributes.get(names.ATTR_MODE) == names.MODE_REUSE:
        return _OWN_LEG.get(span.resource.service_name, _EITHER_LEG)
    return PARENTS.get(span.name)


def _attributes(request: RequestSpans) -> Iterator[Defect]:
    root = request.root
    # After a fall-back the spans of the attempt carry the mode that was attempted.
    fell_back = root is not None and names.ATTR_FALLBACK in root.attributes
    modes = {request.mode, *names.TRANSFER_MODES} if fell_back else {request.mode}
    served = root is None or not root.failed
    if request.mode not in REQUIRED or (served and request.mode == names.MODE_NONE):
        yield Defect("attribute", f"{names.ATTR_MODE} is {request.mode!r}")
    for span in request.trace.spans:
        ours = span.name in PARENTS and span.name != SPAN_LLM_REQUEST
        if not ours and span is not root:
            continue
        name = _ROOT if span is root else span.name
        attributes = span.attributes
        if attributes.get(names.ATTR_MODE) not in modes:
            yield Defect("attribute", f"{name}: {names.ATTR_MODE} is not {request.mode!r}")
        if not request.request_id or attributes.get(names.ATTR_REQUEST_ID) != request.request_id:
            yield Defect("attribute", f"{name}: {names.ATTR_REQUEST_ID} is not the request's")
        if span.failed and names.ATTR_ERROR_TYPE not in attributes:
            yield Defect("attribute", f"{name}: {names.ATTR_ERROR_TYPE} on a failed span")
        if not span.resource.boot_id:
            yield Defect("resource", f"{name}: {names.ATTR_BOOT_ID}")
        if span.resource.service_name != names.SERVICE_ROUTER and names.ATTR_ENGINE_ID not in attributes:
            yield Defect("attribute", f"{name}: {names.ATTR_ENGINE_ID}")
        if name in _WORKER_SPANS and names.ATTR_RANK not in attributes:
            yield Defect("attribute", f"{name}: {names.ATTR_RANK}")


def _telemetry(request: RequestSpans) -> Iterator[Defect]:
    """What a process itself says it lost about this request."""
    for span in request.trace.spans:
        for item in lost(span):
            yield Defect("telemetry", f"{_ROOT if span is request.root else span.name}: {item}")


def _spans(request: RequestSpans, engine_spans: bool) -> Iterator[Defect]:
    for name in _CACHED if request.nothing_transferred else REQUIRED.get(request.mode, ()):
        if not request.by_name.get(name) and name not in request.half_known:
            yield Defect("span", name)
    if request.mode == names.MODE_REUSE:
        yield from _reuse(request)
    for transfer in (*request.transfers, *(t for t in request.reuse_transfers if not t.span.failed)):
        phases = (transfer.prepare, transfer.submit, transfer.flight)
        for suffix, phase in zip(PHASES, phases, strict=True):
            if phase is None:
                yield Defect("span", transfer.span.name + suffix)
    if engine_spans:
        for leg in (request.leg_prefill, request.leg_decode):
            served = (s.parent_span_id for s in request.by_name.get(SPAN_LLM_REQUEST, ()))
            if leg is not None and leg.span_id not in served:
                yield Defect("span", f"{SPAN_LLM_REQUEST} under {leg.name}")


def _reuse(request: RequestSpans) -> Iterator[Defect]:
    """P's part and D's have the same names here; D's ``kvpath.blocks.held`` ends long after the request."""
    if request.blocks_held is None:
        yield Defect("span", f"{names.SPAN_BLOCKS_HELD} of P")
    if not request.transfers and not request.nothing_transferred:
        yield Defect("span", f"{names.SPAN_READ} of D")
    if (
        request.lookup is not None
        and request.lookup.attributes.get(names.ATTR_REUSE_OUTCOME) not in names.REUSE_OUTCOMES
    ):
        yield Defect("attribute", f"{names.SPAN_REUSE_LOOKUP}: {names.ATTR_REUSE_OUTCOME}")
    if request.reuse_transfers and request.lookup is None:  # without a conversation nothing is looked up, nor read
        yield Defect("span", names.SPAN_REUSE_LOOKUP)
    if lookup_outcome(request) == names.REUSE_HIT and not request.reuse_transfers:
        yield Defect("span", f"{names.SPAN_READ} of P")


def _routes(request: RequestSpans) -> Iterator[Defect]:
    routed = {s.attributes.get(names.ATTR_PHASE) for s in request.by_name.get(names.SPAN_ROUTE, ())}
    for phase in sorted(PHASES_ROUTED.get(request.mode, set()) - routed):
        yield Defect("span", f"{names.SPAN_ROUTE} for phase {phase}")
    if not routed:
        yield Defect("span", names.SPAN_ROUTE)


def _push_links(request: RequestSpans) -> Iterator[Defect]:
    """registration → WRITE → completion, for every rank."""
    registered = {s.span_id for s in request.registers}
    linked = _linked(t.span for t in request.transfers)
    for transfer in request.transfers:
        if not _linked([transfer.span]) & registered:
            yield Defect("link", f"{names.SPAN_WRITE} → {names.SPAN_REGISTER}")
    if registered - linked and request.transfers:
        yield Defect("link", f"{names.SPAN_REGISTER} that no {names.SPAN_WRITE} links to")
    yield from _rendezvous(request.rendezvous, request.transfers)
    if request.awaits:
        written = {t.span.span_id for t in request.transfers}
        if written - _linked(request.awaits):
            yield Defect("link", f"{names.SPAN_AWAIT} → {names.SPAN_WRITE}")
        if _linked(request.awaits) - written:
            yield Defect("span", f"{names.SPAN_WRITE} that {names.SPAN_AWAIT} links to")
    for waiting in request.awaits:
        yield from _completions(waiting)


def _rendezvous(met: Iterable[Span], transfers: Iterable[Transfer]) -> Iterator[Defect]:
    ranks = set()
    for span in met:
        ranks.add(span.attributes.get(names.ATTR_RANK))
        if span.attributes.get(names.ATTR_LAST_ARRIVAL) not in (
            names.LAST_ARRIVAL_PREFILL,
            names.LAST_ARRIVAL_REGISTRATION,
        ):
            yield Defect("attribute", f"{names.SPAN_RENDEZVOUS}: {names.ATTR_LAST_ARRIVAL}")
    for transfer in transfers:
        if ranks and transfer.rank not in ranks:
            yield Defect("span", f"{names.SPAN_RENDEZVOUS} of rank {transfer.rank}")


def _completions(waiting: Span) -> Iterator[Defect]:
    events = [e for e in waiting.events if e.name == names.EVENT_COMPLETION]
    expected = [e.attributes.get(names.ATTR_COMPLETION_EXPECTED) for e in events]
    numbers = [n for n in expected if isinstance(n, int)]
    if not events or not numbers:
        yield Defect("event", f"{names.EVENT_COMPLETION} on {names.SPAN_AWAIT}")
    elif len(events) < max(numbers):
        yield Defect("event", f"{len(events)} of {max(numbers)} {names.EVENT_COMPLETION} events")


def _pull_links(request: RequestSpans) -> Iterator[Defect]:
    computed = request.compute.span_id if request.compute else None
    for transfer in request.transfers:
        if computed not in _linked([transfer.span]):
            yield Defect("link", f"{names.SPAN_READ} → {names.SPAN_PREFILL_COMPUTE}")


def _linked(spans: Iterable[Span]) -> set[str]:
    return {link.span_id for span in spans for link in span.links}
