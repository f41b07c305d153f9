from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from connector import names
from stack.analysis.critical_path import critical_path
from stack.analysis.synthetic import pull_trace, push_trace
from stack.analysis.trace import Trace
from stack.demo.client import Answer
from stack.demo.evidence import Sent
from stack.demo.prompts import Prompt
from stack.demo.result import DemoResult, evidence_lines, make_result, write_result

MS = 1_000_000
PROMPTS = [Prompt(index, 64, f"prompt {index}") for index in range(3)]


def answer(text: str, trace_id: str = "", ttft_ns: int = 1) -> Answer:
    return Answer(trace_id, text, ttft_ns, ttft_ns + MS, 16, 64, 16)


PLAIN = [[answer(f"text {prompt.index}") for prompt in PROMPTS] for _ in range(2)]


@pytest.fixture
def traces() -> list[Trace]:
    push = [push_trace(number=1 + index) for index in range(3)]
    return push + [pull_trace(number=11 + index) for index in range(3)]


@pytest.fixture
def sent(traces: list[Trace]) -> list[Sent]:
    """The client saw each first token 1, 2 and 3 ms later than the trace, and the plain texts."""
    found = []
    for index, trace in enumerate(traces):
        prompt = PROMPTS[index % 3]
        ttft = critical_path(trace).ttft_ns + (1 + index % 3) * MS
        mode = names.MODE_PUSH if index < 3 else names.MODE_PULL
        found.append(Sent(mode, prompt, answer(f"text {prompt.index}", trace.trace_id, ttft)))
    return found


def with_text(each: Sent, text: str) -> Sent:
    return replace(each, answer=replace(each.answer, text=text))


def test_a_good_run_has_no_problems(sent: list[Sent], traces: list[Trace]) -> None:
    assert make_result(sent, PLAIN, traces).problems == []


def test_client_and_trace_are_compared_request_by_request(sent: list[Sent], traces: list[Trace]) -> None:
    found = make_result(sent, PLAIN, traces).agreement
    assert set(found) == {"push", "pull"}
    for each in found.values():
        assert each.requests == 3
        assert each.difference_p50_ms == pytest.approx(2.0)
        assert each.difference_max_ms == pytest.approx(3.0)
        assert each.client_p50_ms - each.trace_p50_ms == pytest.approx(2.0)


def test_equal_texts(sent: list[Sent], traces: list[Trace]) -> None:
    texts = make_result(sent, PLAIN, traces).texts
    assert (texts.plain_twice_differ, texts.modes_differ) == (0, 0)
    assert texts.differ_from_plain == {"push": 0, "pull": 0}


def test_a_text_that_transfer_changed_is_counted_in_its_mode(sent: list[Sent], traces: list[Trace]) -> None:
    texts = make_result([with_text(sent[0], "garbage"), *sent[1:]], PLAIN, traces).texts
    assert texts.differ_from_plain == {"push": 1, "pull": 0}
    assert (texts.plain_twice_differ, texts.modes_differ) == (0, 1)


def test_the_control_counts_plain_runs_that_differ(sent: list[Sent], traces: list[Trace]) -> None:
    second = [answer("other"), *PLAIN[1][1:]]
    assert make_result(sent, [PLAIN[0], second], traces).texts.plain_twice_differ == 1


def test_a_missing_trace_is_a_problem(sent: list[Sent], traces: list[Trace]) -> None:
    result = make_result(sent, PLAIN, traces[1:])
    assert result.problems == ["1 of 6 requests have no trace"]
    assert result.agreement["push"].requests == 2


def test_an_incomplete_trace_is_a_problem(sent: list[Sent], traces: list[Trace]) -> None:
    spans = tuple(span for span in traces[0].spans if span.name != names.SPAN_BLOCKS_HELD)
    result = make_result(sent, PLAIN, [replace(traces[0], spans=spans), *traces[1:]])
    assert any(names.SPAN_BLOCKS_HELD in problem for problem in result.problems)


@pytest.fixture
def result(sent: list[Sent], traces: list[Trace]) -> DemoResult:
    return make_result(sent, PLAIN, traces)


def test_the_file_adds_up_and_holds_no_text(tmp_path: Path, result: DemoResult) -> None:
    path = tmp_path / "result.json"
    write_result(path, result, {"model": "m"})
    document = json.loads(path.read_text())
    assert document["model"] == "m"
    assert len(document["requests"]) == 6
    for each in document["requests"]:
        assert sum(each["stages_ns"].values()) + each["unexplained_ns"] == each["trace_ttft_ns"]
    assert "prompt 0" not in path.read_text()
    assert "text 0" not in path.read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_printed(result: DemoResult) -> None:
    printed = "\n".join(evidence_lines(result))
    assert "client minus trace: p50 2.00 ms, largest 3.00 ms (3 requests)" in printed
    assert "control, two plain runs of the same engine: all equal" in printed
