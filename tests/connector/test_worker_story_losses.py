"""What does not fit together, comes late or never: it is counted as lost, and what is whole is not."""

from __future__ import annotations

import msgspec
import pytest

from connector import metrics, names
from connector.carrier import register_span_id
from connector.clock import now
from connector.fake_agent import FabricError
from connector.waiting import DEFAULT_MAX_AGE_NS
from tests.connector.conftest import DECODE_LEG, TRACE_ID, carrier_of
from tests.connector.pair import (
    D_REQUEST,
    HOUR_NS,
    LOCAL,
    NOTHING_LOST,
    P_REQUEST,
    REMOTE,
    Pair,
    attributes,
    link_ids,
    ready_to_write,
)


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
    found = attributes(pair.p.span(names.SPAN_WRITE))
    assert found[names.ATTR_INCOMPLETE] == (names.LOST_SIZE,)
    assert not {names.ATTR_BYTES, names.ATTR_RATE} & set(found)
    assert len(pair.p.spans(names.SPAN_WRITE + ".flight")) == 1, "its times are known"
    assert pair.losses == NOTHING_LOST


def test_a_read_whose_allocation_was_not_stamped_lacks_its_start(connected: Pair) -> None:
    pair, wanted_ns = connected, now()
    unstamped = carrier_of(DECODE_LEG, names.MODE_PULL)
    pair.d.ledger.record(pair.dw.story.receipts.read_wanted, wanted_ns, D_REQUEST, unstamped, "prefill-0", P_REQUEST)
    blocks = pair.lists[pair.dw, pair.pw]
    handle = pair.dw.tap.make_prepped_xfer("READ", "local", LOCAL, blocks, REMOTE, notif_msg=f"{P_REQUEST}:1".encode())
    pair.dw.tap.transfer(handle)
    pair.dw.agent.complete(handle)
    pair.poll(pair.dw, handle)
    span = pair.d.span(names.SPAN_READ)
    assert attributes(span)[names.ATTR_INCOMPLETE] == (names.LOST_START,)
    assert span.start_time == pair.d.at(wanted_ns)


@pytest.mark.parametrize("fails", [False, True])
def test_a_write_whose_registration_came_unseen_is_written_all_the_same(connected: Pair, fails: bool) -> None:
    """The fact was refused by a full queue: the prefill is known, and that somebody registered is plain."""
    pair = connected
    pair.stage()
    pair.finish_prefill()
    if fails:
        pair.pw.agent.fail["make_prepped_xfer"] = FabricError("no route")
        with pytest.raises(FabricError):
            pair.write()
    else:
        pair.push()
    rendezvous, write = pair.p.span(names.SPAN_RENDEZVOUS), pair.p.span(names.SPAN_WRITE)
    assert attributes(rendezvous)[names.ATTR_INCOMPLETE] == (names.LOST_END,)
    assert names.ATTR_LAST_ARRIVAL not in attributes(rendezvous)
    assert attributes(write)[names.ATTR_INCOMPLETE] == (names.LOST_START,)
    assert pair.p.samples(metrics.RENDEZVOUS) == []
    if not fails:
        assert link_ids(write) == [register_span_id(TRACE_ID, D_REQUEST, "agent-d")]
        pair.sent(P_REQUEST)
        held = attributes(pair.p.span(names.SPAN_BLOCKS_HELD))
        assert held[names.ATTR_RELEASE_REASON] == names.RELEASE_DONE
    assert pair.losses == NOTHING_LOST
