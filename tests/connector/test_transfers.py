from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector import metrics, names
from connector.transfers import Subject, TransferBook, contiguous_runs
from tests.connector.conftest import PREFILL_LEG, Engine, carrier_of


@pytest.mark.parametrize(
    ("local", "remote", "runs"),
    [
        ([], [], 0),
        ([7], [3], 1),
        ([1, 2, 3], [4, 5, 6], 1),
        ([1, 2, 3], [4, 5, 7], 2),
        ([1, 3, 5], [2, 4, 6], 3),
        ([3, 2, 1], [6, 5, 4], 3),  # adjacent, but backwards: nothing that a transport could merge
    ],
)
def test_counts_runs_that_are_adjacent_on_both_sides(local: list[int], remote: list[int], runs: int) -> None:
    assert contiguous_runs(local, remote) == runs
    assert contiguous_runs(np.array(local), np.array(remote)) == runs


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30))
def test_agrees_with_counting_one_by_one(pairs: list[tuple[int, int]]) -> None:
    local, remote = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    expected = 0
    for index, (here, there) in enumerate(pairs):
        follows = index and (here, there) == (pairs[index - 1][0] + 1, pairs[index - 1][1] + 1)
        expected += not follows
    assert contiguous_runs(local, remote) == expected


def subject(span_id: int | None = None) -> Subject:
    return Subject(carrier_of(PREFILL_LEG), names.SPAN_WRITE, 100, 150, (), span_id, {names.ATTR_RANK: 3})


def test_the_parts_of_a_transfer_are_exact(engine: Engine) -> None:
    book = TransferBook(engine.context)
    book.prepared(160, 1, 200, "WRITE", ([1, 2], [5, 6]), subject())
    book.posted(210, 1, 250, "PROC")
    assert book.ended(1_000, 1, "DONE", 900) is not None
    book.measured(1, 7_500)
    write = engine.span(names.SPAN_WRITE)
    spans = {
        suffix: engine.span(names.SPAN_WRITE + suffix)
        for suffix in (names.SUFFIX_PREPARE, names.SUFFIX_SUBMIT, names.SUFFIX_FLIGHT)
    }
    times = {suffix: (span.start_time, span.end_time) for suffix, span in spans.items()}
    assert (write.start_time, write.end_time) == (engine.at(100), engine.at(1_000))
    assert times == {
        ".prepare": (engine.at(150), engine.at(200)),
        ".submit": (engine.at(200), engine.at(250)),
        ".flight": (engine.at(250), engine.at(1_000)),
    }
    assert (spans[".flight"].attributes or {})[names.ATTR_POLL_GAP] == 100
    assert (write.attributes or {})[names.ATTR_RATE] == 7_500 / 800
    assert (write.attributes or {})[names.ATTR_RUNS] == 1


def test_without_a_poll_in_progress_the_gap_reaches_back_to_the_post(engine: Engine) -> None:
    book = TransferBook(engine.context)
    book.prepared(160, 1, 200, "WRITE", ([1], [5]), subject())
    book.posted(210, 1, 250, "PROC")
    book.ended(1_000, 1, "DONE", 0)
    book.measured(1, 1)
    flight = engine.span(names.SPAN_WRITE + ".flight")
    assert (flight.attributes or {})[names.ATTR_POLL_GAP] == 750


def test_a_handle_that_is_used_again_is_a_new_transfer(engine: Engine) -> None:
    book = TransferBook(engine.context)
    for round_ in range(2):
        at_ns = 1_000 * round_
        book.prepared(at_ns, 1, at_ns + 1, "WRITE", ([1], [5]), subject())
        book.posted(at_ns + 2, 1, at_ns + 3, "PROC")
        book.ended(at_ns + 4, 1, "DONE", 0)
        book.measured(1, 10)
    assert len(engine.spans(names.SPAN_WRITE)) == 2
    assert engine.ledger.losses.unmatched == 0


def test_a_transfer_that_never_ends_is_evicted(engine: Engine) -> None:
    book = TransferBook(engine.context)
    book.prepared(0, 1, 200, "WRITE", ([1], [5]), subject(7))
    book.posted(210, 1, 250, "PROC")
    book.idle(901_000_000_000)
    assert engine.ledger.losses.evicted == 1
    write = engine.span(names.SPAN_WRITE)
    assert lost(write) == (names.LOST_END, names.LOST_SIZE)
    assert write.end_time == engine.at(250), "the last that is known"
    assert write.context.span_id == 7
    assert not {names.ATTR_BYTES, names.ATTR_RATE} & set(write.attributes or {})
    assert parts(engine) == [names.SUFFIX_PREPARE, names.SUFFIX_SUBMIT]
    assert engine.context.samples.take() == []


def test_a_transfer_whose_end_was_not_seen_keeps_its_size(engine: Engine) -> None:
    book = TransferBook(engine.context)
    book.prepared(0, 1, 200, "WRITE", ([1], [5]), subject())
    book.posted(210, 1, 250, "PROC")
    book.measured(1, 4_000)
    book.idle(901_000_000_000)
    write = engine.span(names.SPAN_WRITE)
    assert lost(write) == (names.LOST_END,)
    assert (write.attributes or {})[names.ATTR_BYTES] == 4_000


def test_a_transfer_that_was_posted_unseen_has_neither_submit_nor_flight(engine: Engine) -> None:
    book = TransferBook(engine.context)
    book.prepared(160, 1, 200, "WRITE", ([1], [5]), subject())
    book.ended(1_000, 1, "DONE", 0)
    book.measured(1, 4_000)
    write = engine.span(names.SPAN_WRITE)
    assert lost(write) == (names.LOST_POST,)
    assert write.end_time == engine.at(1_000)
    assert parts(engine) == [names.SUFFIX_PREPARE]
    assert [sample[2] for sample in engine.samples(metrics.STAGE_SECONDS)] == ["prepare"]


def test_a_transfer_that_was_never_posted_failed_and_lost_nothing(engine: Engine) -> None:
    book = TransferBook(engine.context)
    book.prepared(160, 1, 200, "WRITE", ([1], [5]), subject())
    book.failed(300, 1, "FabricError")
    assert lost(engine.span(names.SPAN_WRITE)) is None


def test_what_the_subject_lacks_the_span_lacks(engine: Engine) -> None:
    book = TransferBook(engine.context)
    book.prepared(160, 1, 200, "WRITE", ([1], [5]), replace(subject(), lost=(names.LOST_START,)))
    book.posted(210, 1, 250, "PROC")
    book.ended(1_000, 1, "DONE", 0)
    book.idle(2_000_000_000)
    assert lost(engine.span(names.SPAN_WRITE)) == (names.LOST_START, names.LOST_SIZE)


def lost(span: Any) -> Any:
    return span.attributes.get(names.ATTR_INCOMPLETE)


def parts(engine: Engine) -> list[str]:
    found = [span.name.removeprefix(names.SPAN_WRITE) for span in engine.spans()]
    return [suffix for suffix in found if suffix]
