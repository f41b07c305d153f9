"""What only shows at exact times, or in orders that the end-to-end tests do not reach."""

from __future__ import annotations

import pytest

from connector import metrics, names
from connector.receipts import Receipts
from tests.connector.conftest import DECODE_LEG, Engine, carrier_of

STAGED = 1_000


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
