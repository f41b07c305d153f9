"""Which requests count, and the reasons of those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stack.analysis.synthetic import Figures
from stack.experiment.counted import NO_TRACE, arms_of_cells, exclusion
from stack.experiment.plan import Changes, make_plan
from stack.experiment.presets import DEMO

PLAN = make_plan(DEMO, Changes(requests=2, blocks=2))
CELL = PLAN.cells[0]


@pytest.fixture
def recorded(record):
    return record(PLAN, lambda arm, pair, index: Figures())


def sole(recorded, **changes):
    """Returns the push arm after the first counted push row was changed so."""
    at = next(n for n, row in enumerate(recorded.rows) if not PLAN.blocks[row.block].warm_up and row.mode == "push")
    recorded.rows[at] = replace(recorded.rows[at], **changes)
    ((push, _),) = arms_of_cells(PLAN, recorded.rows, recorded.paths)
    return push


def test_everything_counts_but_the_warm_up(recorded):
    ((push, pull),) = arms_of_cells(PLAN, recorded.rows, recorded.paths)
    for arm in (push, pull):
        assert (arm.seen, arm.warm_up, [len(block) for block in arm.blocks]) == (4, 1, [2, 2])
        assert not arm.excluded
        assert all(sum(c.stages.values()) == c.row.ttft_ns for c in arm.requests())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"error": "timeout", "ttft_ns": None}, "error: timeout"),
        ({"fallback": "p_refused"}, "served without a transfer: p_refused"),
        ({"mode": "pull"}, "asked for pull, ran as push"),
    ],
)
def test_what_is_left_out(recorded, changes, reason):
    push = sole(recorded, **changes)
    assert dict(push.excluded) == {reason: 1}
    assert (push.seen, sum(map(len, push.blocks))) == (4, 3)


def test_a_request_whose_trace_is_missing_counts_without_stages(recorded):
    push = sole(recorded, trace_id="gone")
    assert dict(push.untraced) == {NO_TRACE: 1}
    assert [sum(map(len, blocks)) for blocks in (push.blocks, push.traced())] == [4, 3]


def test_a_request_whose_path_is_of_no_use_counts_without_stages(recorded):
    bad = next(row for row in recorded.rows if row.mode == "push" and not PLAN.blocks[row.block].warm_up)
    path = replace(recorded.paths[bad.trace_id], excluded="path lacks kvpath.write", incomplete=("span: kvpath.write",))
    recorded.paths[bad.trace_id] = path
    push = sole(recorded)
    assert dict(push.untraced) == {"path lacks kvpath.write": 1}
    assert dict(push.incomplete) == {"span: kvpath.write": 1}


def test_without_any_traces_nothing_is_said_of_them(recorded):
    ((push, _),) = arms_of_cells(PLAN, recorded.rows, {})
    assert not push.untraced


def test_the_lead_in_of_a_block_is_left_out(recorded):
    row = recorded.rows[-1]
    assert exclusion(replace(row, scheduled_ns=4_999_999_999), None, replace(CELL, lead_in_s=5.0)).startswith("lead-in")
    assert exclusion(replace(row, scheduled_ns=5_000_000_000), None, replace(CELL, lead_in_s=5.0)) == ""


def test_the_first_turn_of_a_conversation_is_left_out_and_said(recorded):
    row, cell = recorded.rows[-1], replace(CELL, turns=3)
    assert exclusion(row, None, cell) == "first turn of a conversation: nothing is kept yet"
    assert exclusion(replace(row, turn=2), None, cell) == ""


def test_a_request_that_moved_nothing_is_left_out(recorded):
    row = recorded.rows[-1]
    path = replace(recorded.paths[row.trace_id], excluded="nothing transferred: D had the prompt cached")
    assert exclusion(row, path, CELL) == path.excluded
