"""The scheduler's spans: queue and compute on P, first step on D."""

from __future__ import annotations

import pytest
from opentelemetry.trace import StatusCode

from connector import metrics, names
from connector.carrier import Carrier, compute_span_id
from connector.requests import RequestStory
from connector.reuse_offer import Offer
from tests.connector.conftest import DECODE_LEG, PREFILL_LEG, TRACE_ID, Engine
from tests.connector.scheduled import MS, REUSE, START, D, P, arrival_s, attributes, finish, receive


def test_a_prefill_is_queue_then_compute(engine: Engine, story: RequestStory) -> None:
    receive(engine, story)
    story.prefill_scheduled(START + 10 * MS, "p-1", 0)
    finish(story, START + 40 * MS)
    queue, compute = engine.span(names.SPAN_PREFILL_QUEUE), engine.span(names.SPAN_PREFILL_COMPUTE)
    assert queue.start_time == pytest.approx(engine.at(START - 5 * MS), abs=1_000)  # vLLM's time is a float
    assert queue.end_time == compute.start_time == engine.at(START + 10 * MS)
    assert compute.end_time == engine.at(START + 40 * MS)
    for span in (queue, compute):
        assert span.parent.span_id == PREFILL_LEG
        tokens = {names.ATTR_CACHED_TOKENS: 0, names.ATTR_EXTERNAL_TOKENS: 0} if span is compute else {}
        assert attributes(span) == {
            names.ATTR_ENGINE_ID: "engine-0",
            names.ATTR_MODE: "push",
            names.ATTR_REQUEST_ID: "rid-1",
            names.ATTR_PROMPT_TOKENS: 128,
            **tokens,
        }
        assert span.status.status_code is StatusCode.UNSET
    assert compute.context.span_id == compute_span_id(TRACE_ID, "engine-0", "p-1")
    stages = engine.samples(metrics.STAGE_SECONDS)
    assert [sample[1:] for sample in stages] == [["push", "prefill_queue"], ["push", "prefill"]]
    assert [sample[0] for sample in stages] == pytest.approx([0.015, 0.030], abs=1e-5)


def test_a_preempted_prefill_counts_from_its_first_scheduling(engine: Engine, story: RequestStory) -> None:
    receive(engine, story)
    story.prefill_scheduled(START + 10 * MS, "p-1", 0)
    story.prefill_scheduled(START + 20 * MS, "p-1", 0)
    finish(story, START + 40 * MS)
    assert engine.span(names.SPAN_PREFILL_COMPUTE).start_time == engine.at(START + 10 * MS)
    assert len(engine.spans(names.SPAN_PREFILL_QUEUE)) == 1


def test_a_turn_that_takes_kv_back_queues_until_its_read_and_computes_after_it(
    engine: Engine, story: RequestStory
) -> None:
    receive(engine, story, REUSE)
    story.prefill_offered(START, "p-1", Offer(names.REUSE_HIT, 100, 96))
    story.prefill_reads(START + 10 * MS, "p-1", 96)
    story.prefill_scheduled(START + 25 * MS, "p-1", 96)
    finish(story, START + 40 * MS)
    queue, compute = engine.span(names.SPAN_PREFILL_QUEUE), engine.span(names.SPAN_PREFILL_COMPUTE)
    assert queue.end_time == engine.at(START + 10 * MS)
    assert (compute.start_time, compute.end_time) == (engine.at(START + 25 * MS), engine.at(START + 40 * MS))
    assert attributes(queue)[names.ATTR_REUSE_OUTCOME] == names.REUSE_HIT
    assert attributes(queue)[names.ATTR_REUSE_TOKENS] == 100
    assert attributes(queue)[names.ATTR_REUSE_MATCHED_TOKENS] == 96
    assert attributes(compute)[names.ATTR_CACHED_TOKENS] == attributes(compute)[names.ATTR_EXTERNAL_TOKENS] == 96
    assert engine.samples(metrics.REUSE_TOKENS) == [[96, "reused"], [32, "recomputed"]]


@pytest.mark.parametrize(
    ("offer", "outcome"),
    [
        (Offer(names.REUSE_HIT, 100, 60), names.REUSE_TOO_SHORT),
        (Offer(names.REUSE_EDITED, 100, 0), names.REUSE_EDITED),
        (Offer(names.REUSE_GONE, 100, 0), names.REUSE_GONE),
        (None, None),
    ],
)
def test_an_offer_that_is_not_read_says_why(
    engine: Engine, story: RequestStory, offer: Offer | None, outcome: str | None
) -> None:
    receive(engine, story, REUSE)
    if offer is not None:
        story.prefill_offered(START, "p-1", offer)
    story.prefill_scheduled(START + 10 * MS, "p-1", 0)
    assert attributes(engine.span(names.SPAN_PREFILL_QUEUE)).get(names.ATTR_REUSE_OUTCOME) == outcome
    assert engine.samples(metrics.REUSE_TOKENS) == [[128, "recomputed"]]


def test_a_read_that_failed_leaves_all_of_it_to_p(engine: Engine, story: RequestStory) -> None:
    receive(engine, story, REUSE)
    story.prefill_reads(START + 10 * MS, "p-1", 96)
    story.prefill_scheduled(START + 25 * MS, "p-1", 0)
    finish(story, START + 40 * MS)
    assert len(engine.spans(names.SPAN_PREFILL_QUEUE)) == 1
    assert attributes(engine.span(names.SPAN_PREFILL_COMPUTE))[names.ATTR_EXTERNAL_TOKENS] == 0
    assert engine.samples(metrics.REUSE_TOKENS) == [[128, "recomputed"]]


def test_an_abort_during_the_read_leaves_the_queue_as_it_was(engine: Engine, story: RequestStory) -> None:
    receive(engine, story, REUSE)
    story.prefill_reads(START + 10 * MS, "p-1", 96)
    finish(story, START + 12 * MS, "finished_aborted")
    (queue,) = engine.spans()
    assert queue.status.status_code is StatusCode.UNSET


def test_blocks_that_a_read_fills_are_freed_when_it_has_ended(engine: Engine, story: RequestStory) -> None:
    receive(engine, story, REUSE)
    story.prefill_reads(START + 10 * MS, "p-1", 96)
    finish(story, START + 12 * MS, "finished_aborted")
    story.received(START + 30 * MS, frozenset({"p-1"}))
    held = engine.span(names.SPAN_BLOCKS_HELD)
    assert (held.start_time, held.end_time) == (engine.at(START + 12 * MS), engine.at(START + 30 * MS))
    assert attributes(held)[names.ATTR_RELEASE_REASON] == names.RELEASE_ABORTED
    assert engine.samples(metrics.BLOCKS_HELD_SECONDS) == [[0.018, "reuse", "aborted"]]
    assert len(story._prefills) == 0


@pytest.mark.parametrize("scheduled", [False, True])
def test_blocks_that_a_read_has_filled_are_freed_at_once(engine: Engine, story: RequestStory, scheduled: bool) -> None:
    receive(engine, story, REUSE)
    story.prefill_reads(START + 10 * MS, "p-1", 96)
    if scheduled:
        story.prefill_scheduled(START + 11 * MS, "p-1", 96)
    else:
        story.received(START + 11 * MS, frozenset({"p-1"}))
    finish(story, START + 12 * MS, "finished_aborted")
    held = engine.span(names.SPAN_BLOCKS_HELD)
    assert held.start_time == held.end_time == engine.at(START + 12 * MS)


def test_only_reuse_counts_what_is_reused(engine: Engine, story: RequestStory) -> None:
    receive(engine, story)
    story.prefill_scheduled(START + 10 * MS, "p-1", 64)
    assert engine.samples(metrics.REUSE_TOKENS) == []


def test_an_abort_before_scheduling_fails_the_queue(engine: Engine, story: RequestStory) -> None:
    receive(engine, story)
    finish(story, START + 7 * MS, "finished_aborted")
    (queue,) = engine.spans()
    assert queue.name == names.SPAN_PREFILL_QUEUE
    assert queue.end_time == engine.at(START + 7 * MS)
    assert queue.status.status_code is StatusCode.ERROR
    assert attributes(queue)[names.ATTR_ERROR_TYPE] == "finished_aborted"
    assert engine.samples(metrics.BLOCKS_HELD_SECONDS) == [], "it never had blocks"


def test_an_abort_while_computing_fails_compute_and_no_metric(engine: Engine, story: RequestStory) -> None:
    receive(engine, story)
    story.prefill_scheduled(START + 10 * MS, "p-1", 0)
    finish(story, START + 20 * MS, "finished_aborted")
    compute = engine.span(names.SPAN_PREFILL_COMPUTE)
    assert compute.status.status_code is StatusCode.ERROR
    assert attributes(compute)[names.ATTR_ERROR_TYPE] == "finished_aborted"
    assert [sample[2] for sample in engine.samples(metrics.STAGE_SECONDS)] == ["prefill_queue"]
    held = engine.span(names.SPAN_BLOCKS_HELD)
    assert held.parent.span_id == PREFILL_LEG
    assert held.start_time == held.end_time == engine.at(START + 20 * MS)
    assert attributes(held)[names.ATTR_RELEASE_REASON] == names.RELEASE_ABORTED
    assert held.status.status_code is StatusCode.UNSET, "the failure is the prefill's"
    assert engine.samples(metrics.BLOCKS_HELD_SECONDS) == [[0.0, "push", "aborted"]]


@pytest.mark.parametrize(("error", "kept"), [(None, True), (None, False), ("finished_aborted", True)])
def test_only_blocks_of_a_failed_prefill_that_are_not_kept_are_freed_here(
    engine: Engine, story: RequestStory, error: str | None, kept: bool
) -> None:
    receive(engine, story)
    story.prefill_scheduled(START + 10 * MS, "p-1", 0)
    story.prefill_finished(START + 20 * MS, "p-1", P, error, kept)
    assert engine.spans(names.SPAN_BLOCKS_HELD) == []


def test_an_arrival_in_the_future_is_not_believed(engine: Engine, story: RequestStory) -> None:
    story.prefill_received(START, "p-1", P, arrival_s(engine, START + 3_600_000 * MS), 1)
    story.prefill_scheduled(START + MS, "p-1", 0)
    assert engine.span(names.SPAN_PREFILL_QUEUE).start_time == engine.at(START)


def test_the_first_step_runs_from_known_to_the_first_token(engine: Engine, story: RequestStory) -> None:
    story.decode_received(START, "d-1", D)
    story.decode_allocated(START + MS, "d-1", 128)
    story.received(START + 50 * MS, frozenset({"d-1", "of-another-child"}))
    story.decode_first_token(START + 62 * MS, "d-1")
    (span,) = engine.spans()
    assert span.name == names.SPAN_FIRST_STEP
    assert span.parent.span_id == DECODE_LEG
    assert (span.start_time, span.end_time) == (engine.at(START + 50 * MS), engine.at(START + 62 * MS))
    assert attributes(span)[names.ATTR_EXTERNAL_TOKENS] == 128
    assert engine.samples(metrics.STAGE_SECONDS) == [[0.012, "push", "first_step"]]
    assert engine.ledger.losses.unmatched == 0


def test_a_prefix_hit_on_d_waits_for_nothing(engine: Engine, story: RequestStory) -> None:
    story.decode_received(START, "d-1", D)
    story.decode_allocated(START + MS, "d-1", 0)
    story.decode_first_token(START + 9 * MS, "d-1")
    span = engine.span(names.SPAN_FIRST_STEP)
    assert span.start_time == engine.at(START + MS)
    assert attributes(span)[names.ATTR_EXTERNAL_TOKENS] == 0


def test_an_abort_on_d_before_the_kv_is_there_writes_nothing_and_leaks_nothing(
    engine: Engine, story: RequestStory
) -> None:
    story.decode_received(START, "d-1", D)
    story.decode_allocated(START + MS, "d-1", 128)
    story.decode_finished(START + 2 * MS, "d-1", "finished_aborted")
    assert engine.spans() == []
    assert len(story._decodes) == 0


def test_an_abort_on_d_after_the_kv_came_fails_the_first_step(engine: Engine, story: RequestStory) -> None:
    story.decode_received(START, "d-1", D)
    story.received(START + 5 * MS, frozenset({"d-1"}))
    story.decode_finished(START + 6 * MS, "d-1", "finished_aborted")
    span = engine.span(names.SPAN_FIRST_STEP)
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)[names.ATTR_ERROR_TYPE] == "finished_aborted"
    assert engine.samples(metrics.STAGE_SECONDS) == []


def test_an_untraced_request_counts_in_metrics_only(engine: Engine, story: RequestStory) -> None:
    receive(engine, story, Carrier("", names.MODE_PULL, "rid"))
    story.prefill_scheduled(START, "p-1", 0)
    finish(story, START + MS, carrier=Carrier("", names.MODE_PULL, "rid"))
    assert engine.spans() == []
    assert [sample[1:] for sample in engine.samples(metrics.STAGE_SECONDS)] == [
        ["pull", "prefill_queue"],
        ["pull", "prefill"],
    ]
