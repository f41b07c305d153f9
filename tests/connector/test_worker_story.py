"""Push and pull from end to end: two engines' workers, their agents on one fabric, the calls that vLLM makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from opentelemetry.trace import StatusCode

from connector import metrics, names
from connector.carrier import compute_span_id, register_span_id, write_span_id
from connector.clock import now
from connector.contract import REGISTRATION_PREFIX
from connector.fake_agent import FabricError, Network, TransferHandle
from connector.waiting import DEFAULT_MAX_AGE_NS
from tests.connector.conftest import DECODE_LEG, PREFILL_LEG, TRACE_ID, Engine, Worker, carrier_of

P_REQUEST, D_REQUEST = "cmpl-rid-1-0-aaaaaaaa", "cmpl-rid-1-0-bbbbbbbb"
LOCAL, REMOTE = [4, 5, 6, 9], [10, 11, 12, 13]
HOUR_NS = 3_600_000_000_000


class Pair:
    """A prefill and a decode engine, with one worker each unless a test adds some."""

    def __init__(self, new_engine: Callable[..., Engine]) -> None:
        self.network = Network()
        self.p = new_engine("prefill-0", names.SERVICE_PREFILL)
        self.d = new_engine("decode-0", names.SERVICE_DECODE)
        self.pw = self.p.worker("agent-p", self.network)
        self.dw = self.d.worker("agent-d", self.network)
        self.lists: dict[tuple[Worker, Worker], Any] = {}

    def connect(self, source: Worker, target: Worker) -> None:
        self.lists[source, target] = source.connect(target)

    # --- what the hooks record --------------------------------------------------------------------------------
    def stage(self, request: str = D_REQUEST, leg: int = DECODE_LEG, workers: list[Worker] | None = None) -> int:
        """D's worker is told of a registration; returns when D's scheduler allocated."""
        allocated_ns = now()
        carrier = carrier_of(leg, stamp_ns=self.d.at(allocated_ns))
        for worker in workers or [self.dw]:
            self.d.ledger.record(worker.story.receipts.staged, now(), request, carrier, "prefill-0", 1)
        return allocated_ns

    def register(
        self, request: str = D_REQUEST, leg: int = DECODE_LEG, dw: Worker | None = None, pw: Worker | None = None
    ) -> None:
        """D's worker sends the registration that D's scheduler made."""
        data = {
            "request_id": request,
            "decode_engine_id": "decode-0",
            names.PARAM_TELEMETRY: {names.PARAM_TRACEPARENT: carrier_of(leg).traceparent},
        }
        target = (pw or self.pw).agent.name
        (dw or self.dw).tap.send_notif(target, notif_msg=REGISTRATION_PREFIX + msgspec.msgpack.encode(data))

    def finish_prefill(self, request: str = P_REQUEST, leg: int = PREFILL_LEG, pw: Worker | None = None) -> int:
        """P's worker is told that a prefill has finished and its blocks are held; returns when it finished."""
        finished_ns = now()
        story = (pw or self.pw).story
        carrier = carrier_of(leg, stamp_ns=self.p.at(finished_ns))
        self.p.ledger.record(story.offers.held, now(), request, carrier)
        self.p.ledger.record(story.offers.finished, now(), request, carrier)
        return finished_ns

    def write(
        self, request: str = D_REQUEST, pw: Worker | None = None, dw: Worker | None = None, world: int = 1
    ) -> TransferHandle:
        """P's writer prepares and posts a WRITE."""
        pw, dw = pw or self.pw, dw or self.dw
        handle = pw.tap.make_prepped_xfer(
            "WRITE", "local", LOCAL, self.lists[pw, dw], REMOTE, notif_msg=f"{request}:{world}".encode()
        )
        pw.tap.transfer(handle)
        return handle

    def poll(self, worker: Worker, handle: TransferHandle) -> str:
        """What upstream's ``_pop_done_transfers`` does with one handle."""
        state = worker.tap.check_xfer_state(handle)
        if state == "DONE":
            worker.tap.get_xfer_telemetry(handle)
            worker.tap.release_xfer_handle(handle)
        return state

    def sent(self, *requests: str, pw: Worker | None = None) -> None:
        self.p.ledger.record((pw or self.pw).story.offers.released, now(), frozenset(requests))

    def received(self, *requests: str, error: str | None = None) -> None:
        self.d.ledger.record(self.dw.story.receipts.finished, now(), frozenset(requests), error)

    def push(self, request: str = D_REQUEST) -> TransferHandle:
        """The rest of a push once both sides have arrived: WRITE, completion, release."""
        handle = self.write(request)
        self.poll(self.pw, handle)
        self.pw.agent.complete(handle)
        self.poll(self.pw, handle)
        self.dw.tap.get_new_notifs()
        return handle

    @property
    def losses(self) -> list[int]:
        self.p.ledger.drain()
        self.d.ledger.drain()
        return [
            value
            for engine in (self.p, self.d)
            for value in (
                engine.ledger.losses.errors,
                engine.ledger.losses.dropped,
                engine.ledger.losses.evicted,
                engine.ledger.losses.unmatched,
            )
        ]


NOTHING_LOST = [0] * 8


@pytest.fixture
def pair(new_engine: Callable[..., Engine]) -> Pair:
    return Pair(new_engine)


@pytest.fixture
def connected(pair: Pair) -> Pair:
    pair.connect(pair.dw, pair.pw)
    pair.connect(pair.pw, pair.dw)
    return pair


def attributes(span: Any) -> dict[str, Any]:
    return dict(span.attributes)


def link_ids(span: Any) -> list[int]:
    return [link.context.span_id for link in span.links]


def errors(span: Any) -> str | None:
    failed = span.status.status_code is StatusCode.ERROR
    assert failed == (names.ATTR_ERROR_TYPE in span.attributes)
    return span.attributes.get(names.ATTR_ERROR_TYPE)


def test_a_push_with_the_registration_first(connected: Pair) -> None:
    pair = connected
    allocated_ns = pair.stage()
    pair.register()
    pair.pw.tap.get_new_notifs()
    finished_ns = pair.finish_prefill()
    pair.push()
    pair.sent(P_REQUEST)
    pair.received(D_REQUEST)
    assert pair.losses == NOTHING_LOST

    write, held = pair.p.span(names.SPAN_WRITE), pair.p.span(names.SPAN_BLOCKS_HELD)
    rendezvous = pair.p.span(names.SPAN_RENDEZVOUS)
    register, awaiting = pair.d.span(names.SPAN_REGISTER), pair.d.span(names.SPAN_AWAIT)
    parts = [pair.p.span(names.SPAN_WRITE + suffix) for suffix in (".prepare", ".submit", ".flight")]
    assert {span.name for span in pair.p.spans()} == {
        *(span.name for span in (write, held, rendezvous)),
        *(part.name for part in parts),
    }
    assert {span.name for span in pair.d.spans()} == {names.SPAN_REGISTER, names.SPAN_AWAIT}

    # the tree: each side under its own leg, the parts under the WRITE, all of one trace
    for span, parent in (
        *((span, PREFILL_LEG) for span in (write, held, rendezvous)),
        *((span, DECODE_LEG) for span in (register, awaiting)),
        *((part, write.context.span_id) for part in parts),
    ):
        assert span.parent.span_id == parent, span.name
        assert span.context.trace_id == TRACE_ID
        assert errors(span) is None

    # causality: registration -> WRITE -> completion, by ids that both sides derive
    assert register.context.span_id == register_span_id(TRACE_ID, D_REQUEST, "agent-d")
    assert write.context.span_id == write_span_id(TRACE_ID, D_REQUEST, "agent-p", "agent-d")
    assert link_ids(write) == link_ids(rendezvous) == [register.context.span_id]
    assert link_ids(awaiting) == [write.context.span_id]

    # times
    prepare, submit, flight = parts
    assert register.start_time == pair.d.at(allocated_ns)
    assert register.end_time == awaiting.start_time
    assert held.start_time == pair.p.at(finished_ns)
    assert rendezvous.end_time == write.start_time == prepare.start_time >= pair.p.at(finished_ns)
    assert register.start_time <= rendezvous.start_time <= rendezvous.end_time
    assert prepare.end_time <= submit.start_time <= submit.end_time == flight.start_time
    assert flight.end_time == write.end_time <= held.end_time
    assert awaiting.start_time <= awaiting.events[0].timestamp <= awaiting.end_time


def test_attribute_names_and_types_of_a_push(connected: Pair) -> None:
    pair = connected
    pair.pw.ranks["agent-d"] = 0
    pair.dw.ranks["agent-p"] = 0
    pair.stage()
    pair.register()
    pair.pw.tap.get_new_notifs()
    pair.finish_prefill()
    pair.push()
    pair.sent(P_REQUEST)
    pair.received(D_REQUEST)
    on_p = {names.ATTR_ENGINE_ID: "prefill-0", names.ATTR_MODE: "push", names.ATTR_REQUEST_ID: "rid-1"}
    on_d = {**on_p, names.ATTR_ENGINE_ID: "decode-0"}
    write = attributes(pair.p.span(names.SPAN_WRITE))
    rate = write.pop(names.ATTR_RATE)
    assert type(rate) is float
    assert rate > 0
    assert write == {
        **on_p,
        names.ATTR_RANK: 0,
        names.ATTR_PEER_ENGINE_ID: "decode-0",
        names.ATTR_PEER_RANK: 0,
        names.ATTR_PREFILL_REQUEST: P_REQUEST,
        names.ATTR_OPERATION: "WRITE",
        names.ATTR_BYTES: 4_000,
        names.ATTR_DESCRIPTORS: 4,
        names.ATTR_RUNS: 2,
    }
    assert all(type(write[name]) is int for name in (names.ATTR_RANK, names.ATTR_PEER_RANK, names.ATTR_BYTES))
    for suffix in (names.SUFFIX_PREPARE, names.SUFFIX_SUBMIT):
        assert attributes(pair.p.span(names.SPAN_WRITE + suffix)) == {**on_p, names.ATTR_RANK: 0}
    flight = attributes(pair.p.span(names.SPAN_WRITE + names.SUFFIX_FLIGHT))
    assert type(flight.pop(names.ATTR_POLL_GAP)) is int
    assert flight == {**on_p, names.ATTR_RANK: 0}
    peer_d = {names.ATTR_RANK: 0, names.ATTR_PEER_ENGINE_ID: "decode-0"}
    assert attributes(pair.p.span(names.SPAN_RENDEZVOUS)) == {
        **on_p,
        **peer_d,
        names.ATTR_LAST_ARRIVAL: names.LAST_ARRIVAL_PREFILL,
    }
    assert attributes(pair.p.span(names.SPAN_BLOCKS_HELD)) == {
        **on_p,
        names.ATTR_RANK: 0,
        names.ATTR_RELEASE_REASON: names.RELEASE_DONE,
    }
    peer_p = {names.ATTR_RANK: 0, names.ATTR_PEER_ENGINE_ID: "prefill-0"}
    assert attributes(pair.d.span(names.SPAN_REGISTER)) == {**on_d, **peer_p}
    awaiting = pair.d.span(names.SPAN_AWAIT)
    counts = {names.ATTR_COMPLETION_COUNT: 1, names.ATTR_COMPLETION_EXPECTED: 1}
    assert attributes(awaiting) == {**on_d, **peer_p, **counts}
    (event,) = awaiting.events
    assert event.name == names.EVENT_COMPLETION
    assert dict(event.attributes) == {names.ATTR_PRODUCER_RANK: 0, **counts}


def test_metrics_of_a_push(connected: Pair) -> None:
    pair = connected
    pair.stage()
    pair.register()
    pair.pw.tap.get_new_notifs()
    pair.finish_prefill()
    pair.push()
    pair.sent(P_REQUEST)
    pair.received(D_REQUEST)
    assert pair.p.samples(metrics.TRANSFERS) == [[1, "push", "WRITE", "done"]]
    assert pair.p.samples(metrics.TRANSFERRED_BYTES) == [[4_000, "push", "WRITE"]]
    assert pair.p.samples(metrics.DESCRIPTORS) == [[4, "push", "WRITE"]]
    assert pair.p.samples(metrics.RUNS) == [[2, "push", "WRITE"]]
    assert pair.p.samples(metrics.REGISTRATIONS) == [[1, "received"]]
    assert pair.p.samples(metrics.RENDEZVOUS) == [[1, "prefill"]]
    ((waited, last),) = pair.p.samples(metrics.RENDEZVOUS_WAIT_SECONDS)
    assert (waited > 0, last) == (True, "prefill")
    ((seconds, mode, reason),) = pair.p.samples(metrics.BLOCKS_HELD_SECONDS)
    assert (seconds > 0, mode, reason) == (True, "push", "done")
    assert [sample[1:] for sample in pair.p.samples(metrics.STAGE_SECONDS)] == [
        ["push", "prepare"],
        ["push", "submit"],
        ["push", "flight"],
    ]
    assert all(sample[0] > 0 for sample in pair.p.samples(metrics.STAGE_SECONDS))
    assert pair.p.samples(metrics.LEASES_EXPIRED) == []
    assert pair.d.samples(metrics.REGISTRATIONS) == [[1, "sent"]]
    assert pair.d.samples(metrics.COMPLETIONS) == [[1, "push"]]
    assert pair.d.samples(metrics.COMPLETIONS_EXPECTED) == [[1, "push"]]
    flight, write = pair.p.span(names.SPAN_WRITE + ".flight"), pair.p.span(names.SPAN_WRITE)
    submit = pair.p.span(names.SPAN_WRITE + ".submit")
    assert flight.end_time is not None
    assert submit.start_time is not None
    took_ns = flight.end_time - submit.start_time
    assert attributes(write)[names.ATTR_RATE] == pytest.approx(4_000 / took_ns)
    assert pair.p.samples(metrics.TRANSFER_SECONDS) == [[pytest.approx(took_ns / 1e9), "push", "WRITE"]]


def test_a_push_with_the_prefill_first(connected: Pair) -> None:
    pair = connected
    pair.finish_prefill()
    pair.p.ledger.drain()
    pair.stage()
    pair.register()
    pair.pw.tap.get_new_notifs()
    pair.push()
    assert pair.losses == NOTHING_LOST
    rendezvous = pair.p.span(names.SPAN_RENDEZVOUS)
    assert attributes(rendezvous)[names.ATTR_LAST_ARRIVAL] == names.LAST_ARRIVAL_REGISTRATION
    register, write = pair.d.spans(names.SPAN_REGISTER), pair.p.span(names.SPAN_WRITE)
    assert write.start_time == rendezvous.end_time
    assert register[0].end_time is not None
    assert rendezvous.end_time is not None
    assert register[0].end_time <= rendezvous.end_time, "it cannot arrive before it was sent"
    assert pair.p.samples(metrics.RENDEZVOUS) == [[1, "registration"]]


def test_requests_in_flight_do_not_mix(connected: Pair) -> None:
    pair = connected
    requests = {
        f"rid-{index}": (0x1000 + index, 0x2000 + index, f"rid-{index}-0000000a", f"rid-{index}-0000000b")
        for index in range(4)
    }
    for p_leg, d_leg, p_request, d_request in requests.values():
        if p_leg % 2:
            pair.finish_prefill(p_request, p_leg)
        pair.stage(d_request, d_leg)
        pair.register(d_request, d_leg)
    pair.pw.tap.get_new_notifs()
    for p_leg, _, p_request, _ in reversed(requests.values()):
        if not p_leg % 2:
            pair.finish_prefill(p_request, p_leg)
    handles = {d_request: pair.write(d_request) for *_, d_request in reversed(requests.values())}
    for handle in handles.values():
        assert pair.poll(pair.pw, handle) == "PROC"
    for *_, p_request, d_request in requests.values():
        pair.pw.agent.complete(handles[d_request])
        pair.poll(pair.pw, handles[d_request])
        pair.dw.tap.get_new_notifs()
        pair.sent(p_request)
    pair.received(*(d_request for *_, d_request in requests.values()))
    assert pair.losses == NOTHING_LOST
    for name in (names.SPAN_RENDEZVOUS, names.SPAN_WRITE, names.SPAN_BLOCKS_HELD):
        assert sorted(span.parent.span_id for span in pair.p.spans(name)) == [0x1000, 0x1001, 0x1002, 0x1003]
    by_leg = {span.parent.span_id: span for span in pair.p.spans(names.SPAN_WRITE)}
    for p_leg, d_leg, p_request, d_request in requests.values():
        write = by_leg[p_leg]
        assert attributes(write)[names.ATTR_PREFILL_REQUEST] == p_request
        assert write.context.span_id == write_span_id(TRACE_ID, d_request, "agent-p", "agent-d")
        (awaiting,) = [span for span in pair.d.spans(names.SPAN_AWAIT) if span.parent.span_id == d_leg]
        assert link_ids(awaiting) == [write.context.span_id]
    last = {
        span.parent.span_id: attributes(span)[names.ATTR_LAST_ARRIVAL] for span in pair.p.spans(names.SPAN_RENDEZVOUS)
    }
    assert last == {0x1000: "prefill", 0x1001: "registration", 0x1002: "prefill", 0x1003: "registration"}


def test_two_producer_ranks_write_into_one_decode_worker(pair: Pair) -> None:
    second = pair.p.worker("agent-p1", pair.network, rank=1, world_size=2)
    producers = [pair.pw, second]
    for rank, producer in enumerate(producers):
        pair.connect(pair.dw, producer)
        pair.connect(producer, pair.dw)
        pair.dw.ranks[producer.agent.name] = rank
    pair.stage()
    for producer in producers:
        pair.register(pw=producer)
        producer.tap.get_new_notifs()
        pair.finish_prefill(pw=producer)
    for producer in producers:
        handle = pair.write(pw=producer, world=2)
        producer.agent.complete(handle)
        pair.poll(producer, handle)
        pair.dw.tap.get_new_notifs()
        pair.sent(P_REQUEST, pw=producer)
    pair.received(D_REQUEST)
    assert pair.losses == NOTHING_LOST
    awaiting = pair.d.span(names.SPAN_AWAIT)
    events = [dict(event.attributes or {}) for event in awaiting.events]
    assert events == [
        {names.ATTR_PRODUCER_RANK: 0, names.ATTR_COMPLETION_COUNT: 1, names.ATTR_COMPLETION_EXPECTED: 2},
        {names.ATTR_PRODUCER_RANK: 1, names.ATTR_COMPLETION_COUNT: 2, names.ATTR_COMPLETION_EXPECTED: 2},
    ]
    writes = pair.p.spans(names.SPAN_WRITE)
    assert link_ids(awaiting) == [write.context.span_id for write in writes]
    assert [attributes(write)[names.ATTR_RANK] for write in writes] == [0, 1]
    assert len(pair.d.spans(names.SPAN_REGISTER)) == 1, "one registration span, sent to two ranks"
    assert pair.d.samples(metrics.COMPLETIONS_EXPECTED) == [[2, "push"]]
    assert len(pair.p.spans(names.SPAN_BLOCKS_HELD)) == 1, "every rank holds its share; one span a request"


def test_one_producer_writes_into_two_decode_workers(pair: Pair) -> None:
    second = pair.d.worker("agent-d1", pair.network, rank=1, world_size=2)
    targets = [pair.dw, second]
    for target in targets:
        pair.connect(target, pair.pw)
        pair.connect(pair.pw, target)
    pair.stage(workers=targets)
    for target in targets:
        pair.register(dw=target)
    pair.finish_prefill()
    pair.pw.tap.get_new_notifs()
    handles = [pair.write(dw=target) for target in targets]
    for handle in handles:
        pair.pw.agent.complete(handle)
        pair.poll(pair.pw, handle)
    for target in targets:
        target.tap.get_new_notifs()
        pair.d.ledger.record(target.story.receipts.finished, now(), frozenset({D_REQUEST}), None)
    pair.sent(P_REQUEST)
    assert pair.losses == NOTHING_LOST
    writes, awaits = pair.p.spans(names.SPAN_WRITE), pair.d.spans(names.SPAN_AWAIT)
    assert len({write.context.span_id for write in writes}) == 2
    assert [link_ids(awaiting) for awaiting in awaits] == [[write.context.span_id] for write in writes]
    assert len(pair.p.spans(names.SPAN_RENDEZVOUS)) == 1, "the second registration of the request is no second meeting"
    # the WRITE into the second worker links to the first one's registration: that is what P acted on
    assert {link_ids(write)[0] for write in writes} <= {
        span.context.span_id for span in pair.d.spans("kvpath.register")
    }
    assert attributes(pair.p.span(names.SPAN_BLOCKS_HELD))[names.ATTR_RELEASE_REASON] == names.RELEASE_DONE


def test_handshakes_on_both_sides(pair: Pair) -> None:
    pair.stage()
    pair.connect(pair.dw, pair.pw)  # after staging: the registration had to wait for it
    pair.register()
    pair.finish_prefill()
    pair.pw.tap.get_new_notifs()
    pair.connect(pair.pw, pair.dw)  # after the rendezvous: the WRITE had to wait for it
    pair.push()
    pair.received(D_REQUEST)
    assert pair.losses == NOTHING_LOST
    on_p, on_d = pair.p.span(names.SPAN_HANDSHAKE), pair.d.span(names.SPAN_HANDSHAKE)
    register, rendezvous = pair.d.span(names.SPAN_REGISTER), pair.p.span(names.SPAN_RENDEZVOUS)
    prepare, write = pair.p.span(names.SPAN_WRITE + ".prepare"), pair.p.span(names.SPAN_WRITE)
    assert (on_p.parent.span_id, on_d.parent.span_id) == (PREFILL_LEG, DECODE_LEG)
    assert register.start_time <= on_d.start_time < on_d.end_time <= register.end_time
    assert write.start_time == rendezvous.end_time == on_p.start_time
    assert on_p.end_time == prepare.start_time
    assert attributes(on_p)[names.ATTR_PEER_ENGINE_ID] == "decode-0"
    assert attributes(on_d)[names.ATTR_PEER_ENGINE_ID] == "prefill-0"
    for engine in (pair.p, pair.d):
        assert ["push", "handshake"] in [sample[1:] for sample in engine.samples(metrics.STAGE_SECONDS)]


def test_no_handshake_span_when_the_connection_was_there(connected: Pair) -> None:
    pair = connected
    pair.stage()
    pair.register()
    pair.finish_prefill()
    pair.pw.tap.get_new_notifs()
    pair.push()
    pair.received(D_REQUEST)
    assert pair.p.spans(names.SPAN_HANDSHAKE) == pair.d.spans(names.SPAN_HANDSHAKE) == []


def test_a_transfer_that_is_done_at_once(connected: Pair) -> None:
    pair = connected
    pair.pw.agent.done_at_once = True
    pair.stage()
    pair.register()
    pair.finish_prefill()
    pair.pw.tap.get_new_notifs()
    handle = pair.write()
    pair.poll(pair.pw, handle)
    flight = pair.p.span(names.SPAN_WRITE + ".flight")
    assert flight.start_time == flight.end_time
    assert attributes(flight)[names.ATTR_POLL_GAP] == 0
    assert pair.losses == NOTHING_LOST


def test_the_poll_gap_bounds_the_true_end(connected: Pair) -> None:
    pair = connected
    pair.finish_prefill()
    pair.stage()
    pair.register()
    pair.pw.tap.get_new_notifs()
    handle = pair.write()
    before_ns = now()
    pair.poll(pair.pw, handle)
    after_ns = now()
    pair.pw.agent.complete(handle)
    pair.poll(pair.pw, handle)
    flight = pair.p.span(names.SPAN_WRITE + ".flight")
    earliest_ns = pair.p.mono(flight.end_time) - attributes(flight)[names.ATTR_POLL_GAP]
    assert before_ns <= earliest_ns <= after_ns


def ready_to_write(pair: Pair) -> None:
    pair.stage()
    pair.register()
    pair.finish_prefill()
    pair.pw.tap.get_new_notifs()


def test_a_failed_preparation(connected: Pair) -> None:
    pair = connected
    ready_to_write(pair)
    pair.pw.agent.fail["make_prepped_xfer"] = FabricError("no route")
    with pytest.raises(FabricError):
        pair.write()
    write = pair.p.span(names.SPAN_WRITE)
    assert errors(write) == "FabricError"
    assert write.parent.span_id == PREFILL_LEG
    assert write.context.span_id == write_span_id(TRACE_ID, D_REQUEST, "agent-p", "agent-d")
    assert pair.p.samples(metrics.TRANSFERS) == [[1, "push", "WRITE", "FabricError"]]
    assert pair.losses == NOTHING_LOST


def test_a_failed_post(connected: Pair) -> None:
    pair = connected
    ready_to_write(pair)
    pair.pw.agent.fail["transfer"] = FabricError("no route")
    with pytest.raises(FabricError):
        pair.write()
    write = pair.p.span(names.SPAN_WRITE)
    assert errors(write) == "FabricError"
    assert names.ATTR_RATE not in attributes(write)
    assert [span.name for span in pair.p.spans() if span.name.startswith("kvpath.write.")] == ["kvpath.write.prepare"]
    assert pair.p.samples(metrics.TRANSFERS) == [[1, "push", "WRITE", "FabricError"]]
    assert pair.p.samples(metrics.TRANSFERRED_BYTES) == []


@pytest.mark.parametrize("how", ["state", "check_xfer_state", "get_xfer_telemetry"])
def test_a_failed_flight(connected: Pair, how: str) -> None:
    pair = connected
    ready_to_write(pair)
    handle = pair.write()
    if how == "state":
        pair.pw.agent.complete(handle, "ERR")
        assert pair.poll(pair.pw, handle) == "ERR"
        error = "nixl_transfer_error"
    else:
        pair.pw.agent.complete(handle)
        pair.pw.agent.fail[how] = FabricError("link down")
        with pytest.raises(FabricError):
            pair.poll(pair.pw, handle)
        error = "FabricError"
    pair.sent(P_REQUEST)  # upstream keeps the blocks until their lease ends
    write, flight = pair.p.span(names.SPAN_WRITE), pair.p.span(names.SPAN_WRITE + ".flight")
    assert errors(write) == error
    assert flight.end_time == write.end_time
    assert pair.p.samples(metrics.TRANSFERS) == [[1, "push", "WRITE", error]]
    assert pair.p.samples(metrics.TRANSFERRED_BYTES) == []
    assert pair.losses == NOTHING_LOST


def test_a_failure_of_one_of_two_writes_is_no_release_by_completion(pair: Pair) -> None:
    second = pair.d.worker("agent-d1", pair.network, rank=1, world_size=2)
    targets = [pair.dw, second]
    for target in targets:
        pair.connect(target, pair.pw)
        pair.connect(pair.pw, target)
    pair.stage(workers=targets)
    pair.register()
    pair.finish_prefill()
    pair.pw.tap.get_new_notifs()
    for target, state in zip(targets, ("DONE", "ERR"), strict=True):
        handle = pair.write(dw=target)
        pair.pw.agent.complete(handle, state)
        pair.poll(pair.pw, handle)
    pair.sent(P_REQUEST)
    assert errors(pair.p.span(names.SPAN_BLOCKS_HELD)) == names.RELEASE_LEASE_EXPIRED
    assert pair.p.samples(metrics.LEASES_EXPIRED) == [[1, "push"]]


def test_a_lease_that_expires_before_a_registration_comes(connected: Pair) -> None:
    pair = connected
    pair.finish_prefill()
    pair.sent(P_REQUEST)
    held = pair.p.span(names.SPAN_BLOCKS_HELD)
    assert errors(held) == names.RELEASE_LEASE_EXPIRED
    assert attributes(held)[names.ATTR_RELEASE_REASON] == names.RELEASE_LEASE_EXPIRED
    assert pair.p.samples(metrics.LEASES_EXPIRED) == [[1, "push"]]
    ((_, mode, reason),) = pair.p.samples(metrics.BLOCKS_HELD_SECONDS)
    assert (mode, reason) == ("push", "lease_expired")
    pair.stage()
    pair.register()
    pair.pw.tap.get_new_notifs()
    assert pair.p.spans(names.SPAN_RENDEZVOUS) == [], "what is gone cannot be met"


def test_a_registration_that_cannot_be_sent(connected: Pair) -> None:
    pair = connected
    pair.stage()
    pair.dw.agent.fail["send_notif"] = FabricError("no route")
    with pytest.raises(FabricError):
        pair.register()
    pair.received(D_REQUEST, error="receive_failed")
    register, awaiting = pair.d.span(names.SPAN_REGISTER), pair.d.span(names.SPAN_AWAIT)
    assert errors(register) == "FabricError"
    assert errors(awaiting) == "receive_failed"
    assert pair.d.samples(metrics.REGISTRATIONS) == []
    assert pair.d.samples(metrics.COMPLETIONS_EXPECTED) == []


def test_a_handshake_of_d_that_fails_leaves_an_error(pair: Pair) -> None:
    pair.stage()
    pair.received(D_REQUEST, error="receive_failed")
    assert errors(pair.d.span(names.SPAN_AWAIT)) == "receive_failed"
    assert pair.losses == NOTHING_LOST


def test_a_completion_after_the_end_is_unmatched_once_it_cannot_be_early(connected: Pair) -> None:
    pair = connected
    ready_to_write(pair)
    pair.push()
    pair.sent(P_REQUEST)
    pair.received(D_REQUEST)
    pair.p.ledger.drain()
    pair.pw.agent.deliver("agent-d", f"{D_REQUEST}:1".encode())
    pair.dw.tap.get_new_notifs()
    assert pair.losses == NOTHING_LOST
    pair.dw.story.idle(now() + 61_000_000_000)
    assert pair.d.ledger.losses.unmatched == 1
    assert len(pair.d.spans(names.SPAN_AWAIT)) == 1


def test_transfers_of_unknown_requests_are_unmatched_and_harmless(connected: Pair) -> None:
    pair = connected
    handle = pair.write("never-registered")
    pair.pw.agent.complete(handle)
    pair.poll(pair.pw, handle)
    pair.p.ledger.drain()
    assert pair.p.spans() == []
    assert pair.p.ledger.losses.unmatched == 4  # prepared, posted, ended, measured
    assert pair.p.ledger.losses.errors == 0


def test_garbage_on_the_wire_costs_errors_and_hides_nothing(connected: Pair) -> None:
    pair = connected
    pair.stage()
    for garbage in (b"PUSH_REG:\xff\xff", b"PUSH_REG:" + msgspec.msgpack.encode([1]), b"\xff\xfe:1", b"no-count"):
        pair.dw.agent.deliver("agent-p", garbage)
    pair.register()
    pair.pw.tap.get_new_notifs()
    pair.finish_prefill()
    pair.p.ledger.drain()
    assert pair.p.ledger.losses.errors == 4
    assert len(pair.p.spans(names.SPAN_RENDEZVOUS)) == 1


def test_heartbeats_are_nothing(connected: Pair) -> None:
    pair = connected
    pair.dw.tap.send_notif("agent-p", notif_msg=b"HB:" + P_REQUEST.encode())
    pair.pw.tap.get_new_notifs()
    assert pair.p.spans() == pair.d.spans() == []
    pair.pw.story.idle(now() + HOUR_NS)
    assert pair.losses == NOTHING_LOST


@pytest.mark.parametrize(
    ("p_request", "d_request", "meets"),
    [
        ("cmpl-a-0-11111111", "cmpl-a-0-22222222", True),
        ("cmpl-a-0", "cmpl-a-0", True),
        ("cmpl-a-0-11111111", "cmpl-b-0-11111111", False),
        ("cmpl-a-1-11111111", "cmpl-a-0-11111111", False),
    ],
)
def test_pairs_by_the_id_without_its_random_suffix(
    connected: Pair, p_request: str, d_request: str, meets: bool
) -> None:
    pair = connected
    pair.finish_prefill(p_request)
    pair.stage(d_request)
    pair.register(d_request)
    pair.pw.tap.get_new_notifs()
    assert len(pair.p.spans(names.SPAN_RENDEZVOUS)) == meets


def test_a_finished_push_leaves_nothing_to_evict(connected: Pair) -> None:
    pair = connected
    ready_to_write(pair)
    pair.push()
    pair.sent(P_REQUEST)
    pair.received(D_REQUEST)
    pair.p.ledger.drain()
    pair.d.ledger.drain()
    pair.pw.story.idle(now() + HOUR_NS)
    pair.dw.story.idle(now() + HOUR_NS)
    assert pair.losses == NOTHING_LOST


def test_what_never_continues_is_evicted_and_counted(connected: Pair) -> None:
    pair = connected
    pair.stage()
    pair.register()
    pair.pw.tap.get_new_notifs()  # the prefill never finishes, the WRITE never comes
    assert pair.losses == NOTHING_LOST
    pair.pw.story.idle(now() + DEFAULT_MAX_AGE_NS + 1_000_000_000)
    pair.dw.story.idle(now() + DEFAULT_MAX_AGE_NS + 1_000_000_000)
    assert (pair.p.ledger.losses.evicted, pair.d.ledger.losses.evicted) == (1, 1)


def test_a_drain_between_the_poll_and_the_measurement_loses_no_bytes(connected: Pair) -> None:
    pair = connected
    ready_to_write(pair)
    handle = pair.write()
    pair.pw.agent.complete(handle)
    pair.pw.tap.check_xfer_state(handle)
    pair.p.ledger.drain()
    pair.pw.tap.get_xfer_telemetry(handle)
    assert attributes(pair.p.span(names.SPAN_WRITE))[names.ATTR_BYTES] == 4_000
    assert pair.losses == NOTHING_LOST


def test_a_transfer_that_is_never_measured_is_still_written(connected: Pair) -> None:
    pair = connected
    ready_to_write(pair)
    handle = pair.write()
    pair.pw.agent.complete(handle)
    pair.pw.tap.check_xfer_state(handle)
    pair.p.ledger.drain()
    pair.pw.story.idle(now() + 2_000_000_000)
    assert attributes(pair.p.span(names.SPAN_WRITE))[names.ATTR_BYTES] == 0
    assert pair.losses == NOTHING_LOST


def test_an_untraced_push_counts_in_metrics_only(connected: Pair) -> None:
    pair = connected
    untraced = carrier_of(PREFILL_LEG)._replace(traceparent="")
    pair.p.ledger.record(pair.pw.story.offers.held, now(), P_REQUEST, untraced)
    pair.p.ledger.record(pair.pw.story.offers.finished, now(), P_REQUEST, untraced)
    pair.d.ledger.record(pair.dw.story.receipts.staged, now(), D_REQUEST, untraced, "prefill-0", 1)
    registration = {"request_id": D_REQUEST, "decode_engine_id": "decode-0"}  # a D that is not traced by us
    pair.dw.tap.send_notif("agent-p", notif_msg=REGISTRATION_PREFIX + msgspec.msgpack.encode(registration))
    pair.pw.tap.get_new_notifs()
    pair.push()
    pair.sent(P_REQUEST)
    pair.received(D_REQUEST)
    assert pair.p.spans() == pair.d.spans() == []
    assert pair.p.samples(metrics.TRANSFERS) == [[1, "push", "WRITE", "done"]]
    assert pair.d.samples(metrics.COMPLETIONS) == [[1, "push"]]
    assert pair.losses == NOTHING_LOST


# --- pull -------------------------------------------------------------------------------------------------------


def want_read(pair: Pair) -> int:
    allocated_ns = now()
    carrier = carrier_of(DECODE_LEG, names.MODE_PULL, stamp_ns=pair.d.at(allocated_ns))
    pair.d.ledger.record(pair.dw.story.receipts.read_wanted, now(), D_REQUEST, carrier, "prefill-0", P_REQUEST)
    return allocated_ns


def hold_for_pull(pair: Pair) -> None:
    carrier = carrier_of(PREFILL_LEG, names.MODE_PULL, stamp_ns=pair.p.at(now()))
    pair.p.ledger.record(pair.pw.story.offers.held, now(), P_REQUEST, carrier)


def read(pair: Pair) -> TransferHandle:
    handle = pair.dw.tap.make_prepped_xfer(
        "READ", "local", LOCAL, pair.lists[pair.dw, pair.pw], REMOTE, notif_msg=f"{P_REQUEST}:1".encode()
    )
    pair.dw.tap.transfer(handle)
    return handle


def test_a_pull_with_a_handshake(pair: Pair) -> None:
    hold_for_pull(pair)
    allocated_ns = want_read(pair)
    pair.connect(pair.dw, pair.pw)
    handle = read(pair)
    assert pair.poll(pair.dw, handle) == "PROC"
    pair.dw.agent.complete(handle)
    pair.poll(pair.dw, handle)
    pair.received(D_REQUEST)
    pair.pw.tap.get_new_notifs()
    pair.sent(P_REQUEST)
    assert pair.losses == NOTHING_LOST
    span, handshake = pair.d.span(names.SPAN_READ), pair.d.span(names.SPAN_HANDSHAKE)
    prepare, submit, flight = (pair.d.span(names.SPAN_READ + suffix) for suffix in (".prepare", ".submit", ".flight"))
    assert span.parent.span_id == DECODE_LEG
    assert link_ids(span) == [compute_span_id(TRACE_ID, "prefill-0", P_REQUEST)]
    assert span.start_time == pair.d.at(allocated_ns) <= handshake.start_time
    assert handshake.end_time == prepare.start_time
    assert prepare.end_time <= submit.start_time <= submit.end_time == flight.start_time <= flight.end_time
    assert flight.end_time == span.end_time
    found = attributes(span)
    assert found[names.ATTR_MODE] == "pull"
    assert found[names.ATTR_OPERATION] == "READ"
    assert found[names.ATTR_PREFILL_REQUEST] == P_REQUEST
    assert pair.d.spans(names.SPAN_AWAIT) == pair.d.spans(names.SPAN_REGISTER) == []
    held = pair.p.span(names.SPAN_BLOCKS_HELD)
    assert attributes(held)[names.ATTR_RELEASE_REASON] == names.RELEASE_DONE
    assert pair.d.samples(metrics.TRANSFERS) == [[1, "pull", "READ", "done"]]
    stages = [sample[2] for sample in pair.d.samples(metrics.STAGE_SECONDS)]
    assert stages == ["handshake", "prepare", "submit", "flight"]


def test_a_pull_over_a_connection_that_is_there(connected: Pair) -> None:
    pair = connected
    allocated_ns = want_read(pair)
    handle = read(pair)
    pair.dw.agent.complete(handle)
    pair.poll(pair.dw, handle)
    assert pair.d.spans(names.SPAN_HANDSHAKE) == []
    assert pair.d.span(names.SPAN_READ + ".prepare").start_time == pair.d.at(allocated_ns)


def test_a_full_prefix_hit_reads_nothing_and_releases_p(connected: Pair) -> None:
    pair = connected
    hold_for_pull(pair)
    pair.dw.tap.send_notif("agent-p", notif_msg=f"{P_REQUEST}:1".encode())
    pair.pw.tap.get_new_notifs()
    pair.sent(P_REQUEST)
    assert pair.d.spans() == []
    assert attributes(pair.p.span(names.SPAN_BLOCKS_HELD))[names.ATTR_RELEASE_REASON] == names.RELEASE_DONE
    assert pair.losses == NOTHING_LOST


def test_one_of_two_readers_is_no_release_by_completion(connected: Pair) -> None:
    pair = connected
    hold_for_pull(pair)
    pair.dw.tap.send_notif("agent-p", notif_msg=f"{P_REQUEST}:2".encode())
    pair.pw.tap.get_new_notifs()
    pair.sent(P_REQUEST)
    assert errors(pair.p.span(names.SPAN_BLOCKS_HELD)) == names.RELEASE_LEASE_EXPIRED


def test_a_reader_that_is_done_before_the_worker_learns_of_the_prefill(connected: Pair) -> None:
    """Asynchronous scheduling: upstream reports the blocks sent a step before the metadata that says they are held."""
    pair = connected
    pair.dw.tap.send_notif("agent-p", notif_msg=f"{P_REQUEST}:1".encode())
    finished_ns = now()
    pair.pw.tap.get_new_notifs()
    released_ns = now()
    pair.p.ledger.record(pair.pw.story.offers.released, released_ns, frozenset({P_REQUEST}))
    carrier = carrier_of(PREFILL_LEG, names.MODE_PULL, stamp_ns=pair.p.at(finished_ns))
    pair.p.ledger.record(pair.pw.story.offers.held, now(), P_REQUEST, carrier)
    held = pair.p.span(names.SPAN_BLOCKS_HELD)
    assert attributes(held)[names.ATTR_RELEASE_REASON] == names.RELEASE_DONE
    assert (held.start_time, held.end_time) == (pair.p.at(finished_ns), pair.p.at(released_ns))
    pair.pw.story.idle(now() + HOUR_NS)
    assert pair.losses == NOTHING_LOST


def test_a_pull_that_fails_before_its_read(pair: Pair) -> None:
    want_read(pair)
    pair.received(D_REQUEST, error="receive_failed")
    span = pair.d.span(names.SPAN_READ)
    assert errors(span) == "receive_failed"
    assert pair.d.samples(metrics.TRANSFERS) == [[1, "pull", "READ", "receive_failed"]]
    pair.dw.story.idle(now() + HOUR_NS)
    assert pair.losses == NOTHING_LOST


@pytest.mark.parametrize("call", ["make_prepped_xfer", "transfer"])
def test_a_read_that_fails_is_written_once(connected: Pair, call: str) -> None:
    pair = connected
    want_read(pair)
    pair.dw.agent.fail[call] = FabricError("no route")
    with pytest.raises(FabricError):
        read(pair)
    pair.received(D_REQUEST, error="receive_failed")
    assert errors(pair.d.span(names.SPAN_READ)) == "FabricError"
    assert pair.d.samples(metrics.TRANSFERS) == [[1, "pull", "READ", "FabricError"]]
    assert pair.losses == NOTHING_LOST


def test_a_read_that_ends_badly(connected: Pair) -> None:
    pair = connected
    want_read(pair)
    handle = read(pair)
    pair.dw.agent.complete(handle, "ERR")
    pair.poll(pair.dw, handle)
    pair.received(D_REQUEST, error="receive_failed")
    assert errors(pair.d.span(names.SPAN_READ)) == "nixl_transfer_error"
    assert pair.losses == NOTHING_LOST
