"""What only shows at exact times, or in orders that the end-to-end tests do not reach."""

from __future__ import annotations

from typing import Any

import pytest

from connector import metrics, names
from connector.receipts import Receipts
from connector.waiting import DEFAULT_MAX_AGE_NS
from tests.connector.conftest import DECODE_LEG, Engine, carrier_of

STAGED = 1_000
FORGOTTEN = STAGED + DEFAULT_MAX_AGE_NS + 1


def receipts_of(engine: Engine, world_size: int = 1) -> Receipts:
    return Receipts(engine.context, 0, world_size, "agent-d", lambda agent: -1)


@pytest.fixture
def receipts(engine: Engine) -> Receipts:
    return receipts_of(engine)


def stage(engine: Engine, receipts: Receipts, stages: int = 1) -> None:
    carrier = carrier_of(DECODE_LEG, stamp_ns=engine.at(900))
    receipts.staged(STAGED, "d-1", carrier, "prefill-0", stages)


def test_register_ends_when_the_last_rank_was_told(engine: Engine, receipts: Receipts) -> None:
    stage(engine, receipts)
    receipts.sent(1_100, "d-1", 0)
    receipts.sent(1_200, "d-1", 0)
    receipts.idle(1_300)
    receipts.finished(2_000, frozenset({"d-1"}), None)
    register, awaiting = engine.span(names.SPAN_REGISTER), engine.span(names.SPAN_AWAIT)
    assert (register.start_time, register.end_time) == (engine.at(900), engine.at(1_200))
    assert (awaiting.start_time, awaiting.end_time) == (engine.at(1_200), engine.at(2_000))


def test_a_registration_that_ends_before_the_idle_pass_is_still_written(engine: Engine, receipts: Receipts) -> None:
    stage(engine, receipts)
    receipts.sent(1_100, "d-1", 0)
    receipts.finished(2_000, frozenset({"d-1"}), None)
    receipts.idle(2_100)
    assert len(engine.spans(names.SPAN_REGISTER)) == 1
    assert engine.samples(metrics.REGISTRATIONS) == [[1, "sent"]]


def test_a_connection_older_than_the_request_is_no_handshake(engine: Engine, receipts: Receipts) -> None:
    stage(engine, receipts)
    receipts.sent(1_100, "d-1", STAGED)
    receipts.idle(1_200)
    assert engine.spans(names.SPAN_HANDSHAKE) == []


@pytest.mark.parametrize(
    ("stages", "producers", "consumers", "expected"),
    [(1, 1, 1, 1), (2, 1, 1, 2), (1, 4, 2, 2), (2, 4, 2, 4), (1, 1, 4, 1)],
)
def test_expects_one_completion_for_each_producer_that_writes_here(
    engine: Engine, stages: int, producers: int, consumers: int, expected: int
) -> None:
    receipts = receipts_of(engine, consumers)
    stage(engine, receipts, stages)
    receipts.completed(1_500, "agent-p", "d-1", producers)
    receipts.finished(2_000, frozenset({"d-1"}), None)
    (event,) = engine.span(names.SPAN_AWAIT).events
    assert (event.attributes or {})[names.ATTR_COMPLETION_EXPECTED] == expected
    assert (event.attributes or {})[names.ATTR_PRODUCER_RANK] == -1
    assert event.timestamp == engine.at(1_500)


def test_a_registration_of_nobody_is_unmatched(engine: Engine, receipts: Receipts) -> None:
    receipts.sent(1_100, "stranger", 0)
    receipts.send_failed(1_100, "stranger", "FabricError")
    assert engine.ledger.losses.unmatched == 1
    assert engine.spans() == []


def test_a_result_of_a_request_that_is_not_ours_is_nothing(engine: Engine, receipts: Receipts) -> None:
    receipts.finished(2_000, frozenset({"stranger"}), None)
    assert engine.spans() == []
    assert engine.ledger.losses.unmatched == 0


def lost(span: Any) -> Any:
    return span.attributes.get(names.ATTR_INCOMPLETE)


def test_a_receipt_that_is_never_reported_is_written_as_far_as_it_is_known(engine: Engine, receipts: Receipts) -> None:
    stage(engine, receipts)
    receipts.sent(1_100, "d-1", 0)
    receipts.completed(1_500, "agent-p", "d-1", 1)
    receipts.idle(FORGOTTEN)
    awaiting, register = engine.span(names.SPAN_AWAIT), engine.span(names.SPAN_REGISTER)
    assert lost(awaiting) == (names.LOST_END,)
    assert (awaiting.start_time, awaiting.end_time) == (engine.at(1_100), engine.at(1_500))
    assert len(awaiting.events) == len(awaiting.links) == 1
    assert lost(register) is None
    assert engine.samples(metrics.COMPLETIONS_EXPECTED) == []
    assert engine.ledger.losses.evicted == 1


def test_a_receipt_without_any_completion_is_known_until_it_was_sent(engine: Engine, receipts: Receipts) -> None:
    stage(engine, receipts)
    receipts.sent(1_100, "d-1", 0)
    receipts.idle(FORGOTTEN)
    assert engine.span(names.SPAN_AWAIT).end_time == engine.at(1_100)


@pytest.mark.parametrize("reported", [False, True])
def test_a_registration_that_was_sent_unseen_lacks_its_end(engine: Engine, receipts: Receipts, reported: bool) -> None:
    stage(engine, receipts)
    if reported:
        receipts.finished(2_000, frozenset({"d-1"}), None)
    else:
        receipts.idle(FORGOTTEN)
    register, awaiting = engine.span(names.SPAN_REGISTER), engine.span(names.SPAN_AWAIT)
    assert lost(register) == (names.LOST_END,)
    assert (register.start_time, register.end_time) == (engine.at(900), engine.at(STAGED))
    assert lost(awaiting) == (names.LOST_START,) if reported else (names.LOST_START, names.LOST_END)
    assert awaiting.end_time == engine.at(2_000 if reported else STAGED)
    assert engine.samples(metrics.REGISTRATIONS) == []


def test_a_registration_that_was_never_sent_because_something_failed_lost_nothing(
    engine: Engine, receipts: Receipts
) -> None:
    stage(engine, receipts)
    receipts.finished(2_000, frozenset({"d-1"}), "receive_failed")
    (awaiting,) = engine.spans()
    assert (awaiting.name, lost(awaiting)) == (names.SPAN_AWAIT, None)


def test_a_registration_whose_allocation_was_not_stamped_lacks_its_start(engine: Engine, receipts: Receipts) -> None:
    receipts.staged(STAGED, "d-1", carrier_of(DECODE_LEG), "prefill-0", 1)
    receipts.sent(1_100, "d-1", 0)
    receipts.idle(1_200)
    register = engine.span(names.SPAN_REGISTER)
    assert lost(register) == (names.LOST_START,)
    assert (register.start_time, register.end_time) == (engine.at(STAGED), engine.at(1_100))


@pytest.mark.parametrize("started", [False, True])
def test_a_read_that_is_never_reported_is_its_transfers_to_tell_once_there_is_one(
    engine: Engine, receipts: Receipts, started: bool
) -> None:
    receipts.read_wanted(STAGED, "d-1", carrier_of(DECODE_LEG, stamp_ns=engine.at(900)), "prefill-0", "p-1")
    wanted = receipts.read("p-1")
    assert wanted is not None
    wanted.started = started
    receipts.idle(FORGOTTEN)
    assert [lost(span) for span in engine.spans()] == [(names.LOST_END,)] * (not started)
    for span in engine.spans(names.SPAN_READ):
        assert (span.start_time, span.end_time) == (engine.at(900), engine.at(STAGED))
    assert receipts.read("p-1") is None
    assert engine.samples(metrics.TRANSFERS) == []
    assert engine.ledger.losses.evicted == 1


def test_two_requests_that_read_the_same_blocks_end_one_by_one(engine: Engine, receipts: Receipts) -> None:
    for request in ("d-1", "d-2"):
        receipts.read_wanted(STAGED, request, carrier_of(DECODE_LEG), "prefill-0", "p-1")
    receipts.finished(2_000, frozenset({"d-1"}), None)
    receipts.finished(2_100, frozenset({"d-2"}), "receive_failed")
    span = engine.span(names.SPAN_READ)
    assert lost(span) == (names.LOST_START,)
    assert span.start_time == engine.at(STAGED)
