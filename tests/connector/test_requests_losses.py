"""What the scheduler's spans lack when a fact was lost, and what is said of a request that is forgotten."""

from __future__ import annotations

import dataclasses

import pytest

from connector import metrics, names
from connector.carrier import compute_span_id
from connector.requests import RequestStory
from tests.connector.conftest import PREFILL_LEG, TRACE_ID, Engine
from tests.connector.scheduled import MS, REUSE, START, D, attributes, finish, receive


def test_a_prefill_that_was_scheduled_unseen_lacks_that_instant_twice(engine: Engine, story: RequestStory) -> None:
    receive(engine, story)
    finish(story, START + 40 * MS)
    queue, compute = engine.span(names.SPAN_PREFILL_QUEUE), engine.span(names.SPAN_PREFILL_COMPUTE)
    assert attributes(queue)[names.ATTR_INCOMPLETE] == (names.LOST_END,)
    assert attributes(compute)[names.ATTR_INCOMPLETE] == (names.LOST_START,)
    assert queue.start_time == queue.end_time
    assert compute.start_time == compute.end_time == engine.at(START + 40 * MS)
    assert compute.context.span_id == compute_span_id(TRACE_ID, "engine-0", "p-1"), "D's READ links to it"
    assert names.ATTR_CACHED_TOKENS not in attributes(compute)
    assert engine.samples(metrics.STAGE_SECONDS) == []
    assert engine.ledger.losses.unmatched == 1


def test_a_read_back_that_was_scheduled_unseen_has_its_queue_already(engine: Engine, story: RequestStory) -> None:
    receive(engine, story, REUSE)
    story.prefill_reads(START + 10 * MS, "p-1", 96)
    finish(story, START + 40 * MS)
    assert names.ATTR_INCOMPLETE not in attributes(engine.span(names.SPAN_PREFILL_QUEUE))
    assert attributes(engine.span(names.SPAN_PREFILL_COMPUTE))[names.ATTR_INCOMPLETE] == (names.LOST_START,)


def test_a_prefill_that_was_received_unseen_still_has_an_end(engine: Engine, story: RequestStory) -> None:
    finish(story, START, "finished_error")
    (compute,) = engine.spans()
    assert compute.name == names.SPAN_PREFILL_COMPUTE
    assert compute.parent.span_id == PREFILL_LEG
    assert attributes(compute)[names.ATTR_INCOMPLETE] == (names.LOST_START,)
    assert attributes(compute)[names.ATTR_ERROR_TYPE] == "finished_error"
    assert engine.ledger.losses.unmatched == 1


def test_a_first_token_of_nobody_is_unmatched(engine: Engine, story: RequestStory) -> None:
    story.decode_first_token(START, "unknown")
    assert engine.ledger.losses.unmatched == 1
    assert engine.spans() == []


def test_a_first_token_of_kv_that_came_unseen_lacks_the_start_of_its_step(engine: Engine, story: RequestStory) -> None:
    story.decode_received(START, "d-1", D)
    story.decode_first_token(START + MS, "d-1")
    step = engine.span(names.SPAN_FIRST_STEP)
    assert attributes(step)[names.ATTR_INCOMPLETE] == (names.LOST_START,)
    assert step.start_time == step.end_time == engine.at(START + MS)
    assert engine.samples(metrics.STAGE_SECONDS) == []
    assert engine.ledger.losses.unmatched == 1


def test_what_never_ends_is_evicted_and_counted(engine: Engine, story: RequestStory) -> None:
    receive(engine, story)
    story.decode_received(START, "d-1", D)
    story.idle(START + 901_000 * MS)
    assert engine.ledger.losses.evicted == 2
    assert dataclasses.astuple(engine.ledger.losses) == (0, 0, 2, 0)


def forget(story: RequestStory) -> None:
    story.idle(START + 901_000 * MS)


@pytest.mark.parametrize("reach", ["received", "reads", "scheduled", "aborted"])
def test_what_is_forgotten_of_a_prefill_says_what_it_lacks(engine: Engine, story: RequestStory, reach: str) -> None:
    receive(engine, story, REUSE)
    half, at_ns = names.SPAN_PREFILL_QUEUE, START - 5 * MS
    if reach != "received":
        story.prefill_reads(START + MS, "p-1", 96)
    if reach == "scheduled":
        story.prefill_scheduled(START + 2 * MS, "p-1", 96)
        half, at_ns = names.SPAN_PREFILL_COMPUTE, START + 2 * MS
    if reach == "aborted":
        finish(story, START + 3 * MS, "finished_aborted")
        half, at_ns = names.SPAN_BLOCKS_HELD, START + 3 * MS
    observed = len(engine.samples(metrics.STAGE_SECONDS))
    forget(story)
    lacking = [span for span in engine.spans() if names.ATTR_INCOMPLETE in attributes(span)]
    assert [span.name for span in lacking] == ([] if reach == "reads" else [half]), "a READ is the worker's to tell"
    for span in lacking:
        assert attributes(span)[names.ATTR_INCOMPLETE] == (names.LOST_END,)
        assert span.start_time == span.end_time == pytest.approx(engine.at(at_ns), abs=1_000)
    assert len(engine.samples(metrics.STAGE_SECONDS)) == observed
    assert engine.samples(metrics.BLOCKS_HELD_SECONDS) == []


@pytest.mark.parametrize("known", [False, True])
def test_what_is_forgotten_of_a_decode_says_what_it_lacks(engine: Engine, story: RequestStory, known: bool) -> None:
    story.decode_received(START, "d-1", D)
    if known:
        story.received(START + MS, frozenset({"d-1"}))
    forget(story)
    assert [span.name for span in engine.spans()] == [names.SPAN_FIRST_STEP] * known
    for span in engine.spans():
        assert attributes(span)[names.ATTR_INCOMPLETE] == (names.LOST_END,)
        assert span.start_time == span.end_time == engine.at(START + MS)
