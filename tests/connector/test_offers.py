"""What only shows at exact times, or in orders that the end-to-end tests do not reach."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from connector import metrics, names
from connector.offers import Offers
from tests.connector.conftest import DECODE_LEG, PREFILL_LEG, Engine, carrier_of

CARRIER = carrier_of(PREFILL_LEG)


@pytest.fixture
def offers(engine: Engine) -> Offers:
    return Offers(engine.context, rank=0)


def registration(**changes: Any) -> dict[str, Any]:
    telemetry = {names.PARAM_TRACEPARENT: carrier_of(DECODE_LEG).traceparent}
    return {"request_id": "r-0000000d", "decode_engine_id": "d-0", names.PARAM_TELEMETRY: telemetry, **changes}


def test_the_rendezvous_spans_both_arrivals(engine: Engine, offers: Offers) -> None:
    offers.registered(100, "agent-d", registration())
    offers.finished(170, "r-0000000a", CARRIER)
    span = engine.span(names.SPAN_RENDEZVOUS)
    assert (span.start_time, span.end_time) == (engine.at(100), engine.at(170))
    meeting = offers.meeting("r-0000000d", "agent-d")
    assert meeting is not None
    assert meeting.met_ns == 170


def test_arrivals_at_the_same_instant_are_a_rendezvous_of_no_time(engine: Engine, offers: Offers) -> None:
    offers.finished(100, "r-0000000a", CARRIER)
    offers.registered(100, "agent-d", registration())
    span = engine.span(names.SPAN_RENDEZVOUS)
    assert span.start_time == span.end_time
    assert (span.attributes or {})[names.ATTR_LAST_ARRIVAL] == names.LAST_ARRIVAL_PREFILL


@pytest.mark.parametrize("telemetry", [None, {}, {names.PARAM_TRACEPARENT: "nonsense"}])
def test_a_registration_of_an_untraced_d_meets_without_a_link(
    engine: Engine, offers: Offers, telemetry: dict[str, str] | None
) -> None:
    offers.registered(100, "agent-d", registration(**{names.PARAM_TELEMETRY: telemetry}))
    offers.finished(170, "r-0000000a", CARRIER)
    assert list(engine.span(names.SPAN_RENDEZVOUS).links) == []


def test_a_released_request_forgets_its_meeting(engine: Engine, offers: Offers) -> None:
    offers.held(90, "r-0000000a", CARRIER)
    offers.finished(90, "r-0000000a", CARRIER)
    offers.registered(100, "agent-d", registration())
    offers.writing("r-0000000a")
    offers.written("r-0000000a")
    offers.released(200, frozenset({"r-0000000a"}))
    assert offers.meeting("r-0000000d", "agent-d") is None
    offers.idle(10**15)
    assert engine.ledger.losses.evicted == 0


def test_only_rank_0_reports_how_long_blocks_were_held(engine: Engine) -> None:
    offers = Offers(engine.context, rank=1)
    offers.held(90, "r-0000000a", CARRIER)
    offers.released(200, frozenset({"r-0000000a"}))
    assert engine.spans() == []
    assert engine.context.samples.take() == []


def test_a_release_of_nobody_is_unmatched_after_a_while(engine: Engine, offers: Offers) -> None:
    offers.released(200, frozenset({"stranger"}))
    offers.idle(1_000)
    assert engine.ledger.losses.unmatched == 0
    offers.idle(61_000_000_000)
    assert engine.ledger.losses.unmatched == 1


def test_a_registration_that_says_its_engines_name_is_called_by_it(engine: Engine, offers: Offers) -> None:
    telemetry = {names.PARAM_TRACEPARENT: carrier_of(DECODE_LEG).traceparent, names.PARAM_INSTANCE: "decode-0"}
    offers.registered(100, "agent-d", registration(**{names.PARAM_TELEMETRY: telemetry}))
    offers.finished(170, "r-0000000a", CARRIER)
    assert (engine.span(names.SPAN_RENDEZVOUS).attributes or {})[names.ATTR_PEER_ENGINE_ID] == "decode-0"


@pytest.mark.parametrize("decodes", [False, True])
def test_time_that_is_over_is_a_failure_of_p_s_and_none_of_d_s(engine: Engine, decodes: bool) -> None:
    context = dataclasses.replace(engine.context, decodes=decodes)
    offers = Offers(context, rank=0)
    carrier = carrier_of(DECODE_LEG if decodes else PREFILL_LEG, names.MODE_REUSE, stamp_ns=engine.at(80))
    offers.held(90, "r-0000000a", carrier)
    offers.released(200, frozenset({"r-0000000a"}))
    span = engine.span(names.SPAN_BLOCKS_HELD)
    assert (span.attributes or {})[names.ATTR_RELEASE_REASON] == names.RELEASE_LEASE_EXPIRED
    assert span.status.is_unset is decodes
    assert engine.samples(metrics.LEASES_EXPIRED) == ([] if decodes else [[1, names.MODE_REUSE]])
    assert [sample[1:] for sample in engine.samples(metrics.BLOCKS_HELD_SECONDS)] == [["reuse", "lease_expired"]]


def held(engine: Engine, offers: Offers, **changes: Any) -> None:
    offers.held(90, "r-0000000a", carrier_of(PREFILL_LEG, **{"stamp_ns": engine.at(80), **changes}))


def release(engine: Engine, offers: Offers) -> dict[str, Any]:
    offers.released(200, frozenset({"r-0000000a"}))
    return dict(engine.span(names.SPAN_BLOCKS_HELD).attributes or {})


@pytest.mark.parametrize("loss", ["dropped", "errors"])
def test_with_a_fact_lost_meanwhile_nobody_knows_that_the_lease_expired(
    engine: Engine, offers: Offers, loss: str
) -> None:
    """What is missing may be that somebody was done: a lease is called expired when that is certain."""
    held(engine, offers)
    setattr(engine.ledger.losses, loss, 1)
    found = release(engine, offers)
    assert names.ATTR_RELEASE_REASON not in found
    assert found[names.ATTR_INCOMPLETE] == (names.LOST_REASON,)
    assert engine.span(names.SPAN_BLOCKS_HELD).status.is_unset
    assert engine.samples(metrics.LEASES_EXPIRED) == engine.samples(metrics.BLOCKS_HELD_SECONDS) == []


def test_with_facts_lost_before_or_strangers_about_a_lease_has_expired_all_the_same(
    engine: Engine, offers: Offers
) -> None:
    engine.ledger.losses.dropped = 7
    held(engine, offers)
    engine.ledger.losses.unmatched = engine.ledger.losses.evicted = 1
    assert release(engine, offers)[names.ATTR_RELEASE_REASON] == names.RELEASE_LEASE_EXPIRED


def test_with_a_fact_lost_blocks_that_were_taken_are_known_to_be(engine: Engine, offers: Offers) -> None:
    held(engine, offers)
    offers.read(150, "r-0000000a", 1)
    engine.ledger.losses.dropped = 1
    assert release(engine, offers)[names.ATTR_RELEASE_REASON] == names.RELEASE_DONE


def test_a_fact_lost_before_the_worker_learns_of_the_prefill_counts_as_well(engine: Engine, offers: Offers) -> None:
    offers.released(70, frozenset({"r-0000000a"}))
    engine.ledger.losses.dropped = 1
    held(engine, offers)
    found = dict(engine.span(names.SPAN_BLOCKS_HELD).attributes or {})
    assert found[names.ATTR_INCOMPLETE] == (names.LOST_REASON,)


def test_blocks_whose_prefill_was_not_stamped_lack_the_start(engine: Engine, offers: Offers) -> None:
    held(engine, offers, stamp_ns=0)
    offers.read(150, "r-0000000a", 1)
    assert release(engine, offers)[names.ATTR_INCOMPLETE] == (names.LOST_START,)
    assert engine.span(names.SPAN_BLOCKS_HELD).start_time == engine.at(90)


def test_what_is_forgotten_of_an_offer_says_what_it_lacks(engine: Engine, offers: Offers) -> None:
    held(engine, offers)
    offers.finished(100, "r-0000000a", CARRIER)
    offers.idle(901_000_000_000)
    rendezvous, blocks = engine.span(names.SPAN_RENDEZVOUS), engine.span(names.SPAN_BLOCKS_HELD)
    for span in (rendezvous, blocks):
        assert (span.attributes or {})[names.ATTR_INCOMPLETE] == (names.LOST_END,)
        assert span.parent is not None
        assert span.parent.span_id == PREFILL_LEG
    assert rendezvous.start_time == rendezvous.end_time == engine.at(100)
    assert (blocks.start_time, blocks.end_time) == (engine.at(80), engine.at(90))
    assert engine.context.samples.take() == []
    assert engine.ledger.losses.evicted == 2
