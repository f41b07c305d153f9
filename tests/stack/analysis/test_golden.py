"""The golden traces, whose results were worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connector.stages import STAGE_NAMES
from stack.analysis.compare import analyse, analyse_all, compare
from stack.analysis.complete import defects
from stack.analysis.critical_path import critical_path
from stack.analysis.otlp_json import dumps, parse, read_file
from stack.analysis.reuse import PromptTokens

GOLDEN = Path(__file__).parents[2] / "golden"
EXPECTED = {name: e for name, e in json.loads((GOLDEN / "expected.json").read_text()).items() if name != "comment"}
ALL = sorted(p.stem for p in GOLDEN.glob("*.json") if p.stem != "expected")


@pytest.mark.parametrize("name", EXPECTED)
def test_the_critical_path_is_the_one_worked_out_by_hand(name, golden):
    expected = EXPECTED[name]
    path = critical_path(golden(name))
    assert {
        "ttft": path.ttft_ns,
        "stages": dict(path.stages),
        "unexplained": path.unexplained_ns,
        "overlapped": dict(path.overlapped_ns),
        "overlapped_total": path.overlapped_total_ns,
        "last_arrival": path.last_arrival,
        "flight_uncertainty": path.flight_uncertainty_ns,
        "clock_uncertainty": path.clock_uncertainty_ns,
    } == {
        "ttft": expected["ttft"] * 1000,
        "stages": {stage: expected["stages"].get(stage, 0) * 1000 for stage in STAGE_NAMES},
        "unexplained": expected["unexplained"] * 1000,
        "overlapped": {kind: us * 1000 for kind, us in expected["overlapped"].items()},
        "overlapped_total": expected["overlapped_total"] * 1000,
        "last_arrival": expected["last_arrival"],
        "flight_uncertainty": expected["flight_uncertainty"] * 1000,
        "clock_uncertainty": expected["clock_uncertainty"] * 1000,
    }
    assert path.anomalies == ()
    assert path.missing == ()


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.startswith("reuse")])
def test_what_was_reused_is_what_was_laid_out(name, golden):
    path = critical_path(golden(name))
    assert path.lookup == EXPECTED[name]["lookup"]
    assert path.tokens == PromptTokens(*EXPECTED[name]["tokens"])


def test_tokens_of_other_modes_are_unknown_where_p_does_not_say(golden):
    path = critical_path(golden("pull_handshake"))
    assert (path.tokens, path.lookup) == (None, None)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_hand_worked_figures_add_up(name):
    expected = EXPECTED[name]
    assert sum(expected["stages"].values()) + expected["unexplained"] == expected["ttft"]


@pytest.mark.parametrize("name", ALL)
def test_every_golden_trace_is_complete_and_survives_a_round_trip(name, golden):
    trace = golden(name)
    assert defects(trace) == []
    assert parse(dumps([trace])) == [trace]


def test_the_registration_that_waited_for_a_handshake_is_explained(golden):
    (note,) = critical_path(golden("push_registration_last")).notes
    assert note == "handoff includes 40000000 ns in which the registration waited for D's handshake"


def test_a_failed_request_is_left_out_with_its_reason(golden):
    analysed = analyse(golden("push_error"))
    assert (analysed.path, analysed.excluded, analysed.defects) == (None, "error: prefill_unavailable", ())


def test_the_golden_traces_compare():
    comparison = compare(analyse_all([t for name in ALL for t in read_file(GOLDEN / f"{name}.json")]))
    assert {mode: (m.seen, m.counted, m.incomplete) for mode, m in comparison.modes.items()} == {
        "push": (4, 3, 0),
        "pull": (2, 2, 0),
        "reuse": (3, 3, 0),
        "plain": (1, 1, 0),
    }
    assert comparison.modes["reuse"].tokens == PromptTokens(480, 16, 1488)
    assert comparison.modes["reuse"].lookups == {"hit": 1, "miss": 1, "edited": 1}
    assert comparison.modes["push"].reasons_excluded == {"error: prefill_unavailable": 1}
    assert comparison.modes["push"].last_arrival == {"prefill": 2, "registration": 1}
