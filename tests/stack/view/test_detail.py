"""One request's document: times after the request came in, what is withheld, what is said about it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from connector import names
from stack.analysis.clock import Bounds
from stack.analysis.critical_path import critical_path
from stack.analysis.otlp_json import read_file
from stack.analysis.synthetic import MS, Figures, push_trace, reuse_trace
from stack.analysis.trace import Trace
from stack.view.detail import LONGEST, WITHHELD, request_detail, visible_attributes

GOLDEN = Path(__file__).parents[2] / "golden"


def golden(name: str) -> Trace:
    (trace,) = read_file(GOLDEN / f"{name}.json")
    return trace


def test_the_path_is_the_analysis_own_and_adds_up():
    trace = push_trace(Figures(prefill=120 * MS), ranks=2)
    detail = request_detail(trace, Bounds())
    path = critical_path(trace)
    assert detail["path"]["stages"] == path.stages
    assert sum(detail["path"]["stages"].values()) + detail["path"]["unexplained_ns"] == detail["row"]["ttft_ns"]
    assert sum(detail["row"]["stages"]) == path.ttft_ns == detail["first_token_ns"]


def test_spans_come_in_tree_order_after_the_start():
    detail = request_detail(push_trace(), Bounds())
    first = detail["spans"][0]
    assert (first["depth"], first["start_ns"]) == (0, 0)
    depths = [span["depth"] for span in detail["spans"]]
    assert all(after <= before + 1 for before, after in itertools.pairwise(depths))
    write = next(s for s in detail["spans"] if s["name"] == names.SPAN_WRITE)
    register = next(s for s in detail["spans"] if s["name"] == names.SPAN_REGISTER)
    assert {"from": write["id"], "to": register["id"], "present": True} in detail["links"]
    on_path = {s["name"] for s in detail["spans"] if s["on_path"]}
    assert names.SPAN_PREFILL_COMPUTE in on_path
    assert names.SPAN_REGISTER not in on_path


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        (names.ATTR_MODE, "push", "push"),
        ("gen_ai.usage.input_tokens", 12, "12"),
        ("anything", True, "true"),
        ("anything", 0.25, "0.25"),
        (names.ATTR_CHOSEN, ("P", "D"), "P, D"),
        ("gen_ai.prompt", "the user's words", WITHHELD),
        ("gen_ai.input.messages", ("the user's words",), WITHHELD),
        ("gen_ai.completion.0.content", {"text": "an answer"}, WITHHELD),
        ("exception.message", "near: the user's words", WITHHELD),
        ("unknown", b"bytes", WITHHELD),
    ],
)
def test_text_of_unknown_meaning_is_withheld(key, value, shown):
    assert visible_attributes({key: value}) == [[key, shown]]


def test_long_text_is_cut():
    ((key, value),) = visible_attributes({names.ATTR_FALLBACK: "x" * 10_000})
    assert key == names.ATTR_FALLBACK
    assert len(value) == LONGEST + 1


def test_what_d_keeps_for_the_next_turn_does_not_stretch_the_picture():
    detail = request_detail(reuse_trace(Figures(kept=480_000 * MS)), Bounds())
    assert detail["end_ns"] == detail["spans"][0]["end_ns"] < 5_000 * MS
    assert max(span["end_ns"] for span in detail["spans"]) > 480_000 * MS
    assert "what was kept of the turn before: hit" in detail["notes"]


def test_a_failed_request_says_what_failed():
    detail = request_detail(golden("push_error"), Bounds())
    assert detail["row"]["status"] == "failed"
    assert detail["failures"]
    assert detail["path"] is None
    assert any("left out of the comparison" in note for note in detail["notes"])


def test_several_hosts_show_offsets_and_uncertainty():
    detail = request_detail(golden("pull_cross_host"), Bounds())
    assert detail["clocks"]["count"] > 1
    assert detail["clocks"]["uncertainty_ns"] > 0


def test_a_trace_without_a_request_still_has_a_document():
    whole = push_trace()
    rootless = Trace(whole.trace_id, tuple(s for s in whole.spans if s.parent_span_id))
    detail = request_detail(rootless, Bounds())
    assert detail["path"] is None
    assert min(span["start_ns"] for span in detail["spans"]) == 0
    assert detail["incomplete"]


def test_a_link_out_of_the_trace_is_told():
    whole = push_trace()
    write = next(s for s in whole.spans if s.links)
    elsewhere = replace(write, links=(replace(write.links[0], span_id="f" * 16),))
    trace = Trace(whole.trace_id, tuple(elsewhere if s is write else s for s in whole.spans))
    links = request_detail(trace, Bounds())["links"]
    assert {"from": write.span_id, "to": "f" * 16, "present": False} in links
