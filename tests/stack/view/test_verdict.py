"""A verdict is taken where one is; anything else is none, with the reason where there is one."""

from __future__ import annotations

import json

import pytest

from stack.view.verdict import ResultError, named_result, result_beside, verdict_document


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


def test_what_is_named_may_be_a_folder_a_result_or_a_gpu_measurement(tmp_path):
    text = '{"verdict": {"headline": "h", "sentences": ["h", "a"]}}'
    (tmp_path / "result.json").write_text(text)
    assert named_result(tmp_path) == named_result(tmp_path / "result.json") == tmp_path / "result.json"
    assert named_result(None) is None
    (tmp_path / "gpu.json").write_text(f'{{"arm": "x", "result": {text}}}')
    assert named_result(tmp_path / "gpu.json") == tmp_path / "gpu.json"
    assert verdict_document(tmp_path / "gpu.json")["sentences"] == ["a"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"verdict": 1}', '{"result": {"verdict": "x"}}', "\x00"])
def test_what_is_named_and_has_no_verdict_is_refused_in_a_line(text, tmp_path):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(ResultError) as refused:
        named_result(tmp_path)
    assert "\n" not in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_the_page_says_whose_requests_the_verdict_is_about(tmp_path):
    result = tmp_path / "ab" / "result.json"
    result.parent.mkdir()
    result.write_text('{"verdict": {"headline": "h", "sentences": []}}')
    assert "the requests on this page may be others" in verdict_document(result, ["a"])["beside"]
    (result.parent / "requests.jsonl").write_text('{"trace_id": "a"}\n{"trace_id": "b"}\n{"trace_id": ""}\n')
    about = "The verdict is about the 2 requests of ab/result.json; "
    assert verdict_document(result, ["c"])["beside"] == about + "none of them is on this page."
    assert verdict_document(result, ["a", "c", "d"])["beside"] == about + "1 of the 3 here are of them."
