"""A pull from end to end, and what fails in it."""

from __future__ import annotations

import pytest

from connector import metrics, names
from connector.carrier import compute_span_id
from connector.clock import now
from connector.fake_agent import FabricError, TransferHandle
from tests.connector.conftest import DECODE_LEG, PREFILL_LEG, TRACE_ID, carrier_of
from tests.connector.pair import (
    D_REQUEST,
    HOUR_NS,
    LOCAL,
    NOTHING_LOST,
    P_REQUEST,
    REMOTE,
    Pair,
    attributes,
    errors,
    link_ids,
)


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
