"""A push from end to end: two engines' workers, their agents on one fabric, the calls that vLLM makes."""

from __future__ import annotations

import msgspec
import pytest

from connector import metrics, names
from connector.carrier import register_span_id, write_span_id
from connector.clock import now
from connector.contract import REGISTRATION_PREFIX
from tests.connector.conftest import DECODE_LEG, PREFILL_LEG, TRACE_ID, carrier_of
from tests.connector.pair import D_REQUEST, NOTHING_LOST, P_REQUEST, Pair, attributes, errors, link_ids


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
