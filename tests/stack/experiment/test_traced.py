"""What one row keeps of a trace."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from connector import names
from stack.analysis.synthetic import MS, US, Figures, plain_trace, pull_trace, push_trace, reuse_trace
from stack.analysis.trace import Trace
from stack.experiment.traced import path_row_from, path_rows


def row_of(trace):
    (row,) = path_rows([trace])
    return row


def test_a_push():
    row = row_of(push_trace(Figures(prepare=600 * US, submit=1 * MS, flight=9 * MS, poll_gap=2 * MS), ranks=2))
    assert (row.mode, row.excluded, row.last_arrival) == ("push", "", "prefill")
    assert sum(row.stages.values()) == row.ttft_ns
    assert row.reserved_ns == 800 * MS  # D had its blocks as early as P began to compute
    assert row.held_ns == 600 * US + 1 * MS + 9 * MS + 1 * MS + 200 * US
    assert row.waited_ns > 0
    moved = row.moved
    assert (moved.operation, moved.bytes, moved.poll_gap_ns) == ("WRITE", 2 * 9_437_184, 2 * MS)
    assert moved.time_ns == 1 * MS + 9 * MS + 1 * MS  # first post to the last rank's end
    assert moved.gigabytes_per_second == pytest.approx(2 * 9_437_184 / (11 * MS))


def test_a_pull():
    row = row_of(pull_trace())
    assert (row.mode, row.moved.operation, row.reserved_ns, row.waited_ns) == ("pull", "READ", None, None)
    assert row.held_ns > 0


def test_a_late_registration():
    row = row_of(push_trace(Figures(register=2000 * MS)))
    assert (row.last_arrival, row.reserved_ns) == ("registration", 800 * MS)
    assert row.stages["handoff"] > 1000 * MS


def test_a_reuse_tells_its_two_reads_apart():
    row = row_of(reuse_trace(Figures(flight=9 * MS, reuse_flight=40 * MS, prompt_tokens=640, reused_tokens=512)))
    assert (row.mode, row.lookup) == ("reuse", names.REUSE_HIT)
    assert (row.moved.time_ns, row.moved_back.time_ns) == (150 * US + 9 * MS, 120 * US + 40 * MS)
    assert (row.tokens.reused, row.tokens.cached, row.tokens.computed) == (512, 0, 128)
    assert row.held_ns < 100 * MS, "P's blocks, not those that D keeps for the next turn"
    first = row_of(reuse_trace(outcome=names.REUSE_MISS))
    assert (first.lookup, first.moved_back) == (names.REUSE_MISS, None)


def test_a_row_of_before_there_was_reuse_is_still_read():
    document = row_of(pull_trace()).document()
    for name in ("tokens", "lookup", "moved_back"):
        del document[name]
    assert path_row_from(document) == replace(row_of(pull_trace()), tokens=None)


def test_a_row_survives_its_folder():
    for trace in (push_trace(), pull_trace(), reuse_trace(), plain_trace()):
        row = row_of(trace)
        stored = json.loads(json.dumps({"block": 1, "attempt": 2, **row.document()}))
        assert path_row_from(stored) == row


def test_a_trace_without_a_path_says_why():
    whole = push_trace()
    row = row_of(Trace(whole.trace_id, tuple(s for s in whole.spans if s.name != names.SPAN_FIRST_STEP)))
    assert row.excluded == f"path lacks {names.SPAN_FIRST_STEP}"
    assert row.moved is None
    assert any(names.SPAN_FIRST_STEP in defect for defect in row.incomplete)


def test_clocks_of_two_hosts_do_not_reach_the_row():
    apart = {names.SERVICE_DECODE: 5_000 * MS}
    here = row_of(push_trace())
    there = row_of(push_trace(boot_ids={names.SERVICE_DECODE: "b"}, clocks=apart))
    assert there.ttft_ns == here.ttft_ns
    # What spans both hosts is uncertain by a hop or so; the five seconds are gone.
    for found in (there, here):
        assert 790 * MS < found.reserved_ns <= 810 * MS
    known = {"stages": here.stages, "reserved_ns": 0, "overlapped_ns": 0}
    assert replace(there, **known) == replace(here, **known)
