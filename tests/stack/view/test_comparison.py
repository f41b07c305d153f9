"""The comparison's document: the report's figures, and push less pull."""

from __future__ import annotations

from stack.analysis.compare import analyse_all, compare
from stack.analysis.report_json import report_document
from stack.analysis.synthetic import MS, Figures, pull_trace, push_trace
from stack.view.comparison import MEASURES, comparison_document
from stack.view.rows import STAGE_ORDER


def test_figures_are_those_of_the_report():
    analysed = analyse_all([push_trace(number=1), pull_trace(number=2)])
    found = comparison_document(analysed)
    assert found["modes"] == report_document(compare(analysed), analysed)["modes"]
    assert found["samples_needed"] == {"p50": 10, "p90": 50, "p99": 500}
    assert "requests" not in found


def test_differences_are_push_less_pull():
    pulls = [pull_trace(Figures(prefill=p * MS), number=n) for n, p in enumerate((100, 200, 300), 10)]
    pushes = [push_trace(Figures(prefill=p * MS), number=n) for n, p in enumerate((110, 220, 330), 20)]
    found = comparison_document(analyse_all([*pulls, *pushes]))["differences"]
    assert found["of"] == ["push", "pull"]
    assert found["stages"]["prefill"]["p50"] == 20 * MS
    assert found["stages"]["prefill"]["mean"] == 20 * MS
    total = sum(found["stages"][stage]["mean"] for stage in STAGE_ORDER)
    assert abs(total - found["ttft"]["mean"]) < 1  # means add up
    assert set(found["ttft"]) == set(MEASURES)


def test_one_mode_alone_has_no_difference():
    assert comparison_document(analyse_all([push_trace()]))["differences"] is None
    assert comparison_document([])["differences"] is None
