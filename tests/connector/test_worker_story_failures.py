"""What fails on the way of a push, each thing once: the span says so, and the release of blocks too."""

from __future__ import annotations

import pytest

from connector import metrics, names
from connector.carrier import write_span_id
from connector.fake_agent import FabricError
from tests.connector.conftest import PREFILL_LEG, TRACE_ID
from tests.connector.pair import (
    D_REQUEST,
    NOTHING_LOST,
    P_REQUEST,
    Pair,
    attributes,
    errors,
    ready_to_write,
    two_decode_workers,
)


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
    targets = two_decode_workers(pair)
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
