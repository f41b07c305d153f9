"""A verdict is taken where one is; anything else is none, with the reason where there is one."""

from __future__ import annotations

import json

import pytest

from stack.view.verdict import result_beside, verdict_document


def test_headline_and_sentences(tmp_path):
    traces = tmp_path / "run-1" / "traces.json"
    traces.parent.mkdir()
    result = result_beside(traces)
    result.write_text(
        json.dumps(
            {"verdict": {"headline": "It is the link.", "sentences": ["It is the link.", "a", 3, "b"], "more": {}}}
        )
    )
    found = verdict_document(result)
    assert (found["headline"], found["sentences"], found["result"]) == (
        "It is the link.",
        ["a", "b"],
        "run-1/result.json",
    )


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", "3", '{"verdict": null}', '{"verdict": "push"}', '{"verdict": {"sentences": "x", "headline": 1}}'],
)
def test_another_shape_is_no_verdict(text, tmp_path):
    (tmp_path / "result.json").write_text(text)
    found = verdict_document(tmp_path / "result.json")
    assert (found["headline"], found["sentences"], found["problem"]) == ("", [], "")


def test_a_broken_file_is_said(tmp_path):
    (tmp_path / "result.json").write_text("{")
    assert "result.json cannot be read" in verdict_document(tmp_path / "result.json")["problem"]


def test_no_file(tmp_path):
    assert verdict_document(None) == verdict_document(tmp_path / "result.json")
