"""``kvpath report --html``: one file that needs nothing else, and shows the same figures in Chromium."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stack.analysis import report_command
from stack.analysis.compare import analyse_all
from stack.analysis.otlp_json import write_file
from stack.analysis.synthetic import MS, Figures, pull_trace, push_trace
from stack.view.report import SLOWEST, telling

WORDS = {"headline": "</script><b>Push</b> gained 5 ms.", "sentences": ["It is the protocol."]}


@pytest.fixture
def report(tmp_path, capsys) -> Path:
    figures = [Figures(prefill=n * 20 * MS) for n in range(1, 13)]
    traces = [
        build(f, number=n * 10 + i)
        for n, f in enumerate(figures, 1)
        for i, build in enumerate((push_trace, pull_trace))
    ]
    write_file(tmp_path / "traces.json", traces)
    (tmp_path / "result.json").write_text(json.dumps({"verdict": WORDS}))
    parser = argparse.ArgumentParser()
    report_command.add_arguments(parser)
    target = tmp_path / "report.html"
    assert (
        report_command.run(parser.parse_args(["--traces", str(tmp_path / "traces.json"), "--html", str(target)])) == 0
    )
    assert capsys.readouterr().out == f"wrote {target}\n"
    return target


def test_the_telling_requests_are_the_slowest_and_the_median():
    traces = [push_trace(Figures(prefill=n * 20 * MS), number=n) for n in range(1, 21)]
    chosen = [int(trace_id, 16) for trace_id in telling(analyse_all(traces))]
    assert chosen == [20, 19, 18, 17, 16, 10]
    assert len(chosen) == SLOWEST + 1


def test_the_file_needs_nothing_else(report):
    text = report.read_text(encoding="utf-8")
    assert "Time to first token by stage" in text  # also without JavaScript
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert "default-src &#x27;none&#x27;" in policy[1]
    assert "'self'" not in policy[1]
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", text.split("<script>")[0])
    assert "<b>Push</b>" not in text


def test_a_directory_that_is_not_there_is_said(tmp_path, capsys):
    write_file(tmp_path / "traces.json", [push_trace()])
    parser = argparse.ArgumentParser()
    report_command.add_arguments(parser)
    arguments = ["--traces", str(tmp_path / "traces.json"), "--html", str(tmp_path / "no" / "report.html")]
    assert report_command.run(parser.parse_args(arguments)) == 1
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.browser
def test_the_file_in_a_browser(report, open_page: Callable[..., Any]) -> None:
    page = open_page(report.as_uri())
    page.wait_for_selector("main:not([aria-busy]) .chart-line")
    assert page.locator("h1").inner_text() == "Comparison"
    page.keyboard.press("4")
    page.locator(".headline", has_text="</script><b>Push</b> gained 5 ms.").wait_for()
    page.keyboard.press("1")
    assert page.locator(".count").inner_text() == "12 requests"
    page.locator("a.open").first.click()
    page.locator(".path-line .stage").first.wait_for()
    page.keyboard.press("2")
    page.locator(".of-pair").nth(1).wait_for()
    page.evaluate("location.hash = '#/request/nope'")
    page.get_by_role("alert").get_by_text("does not hold that request").wait_for()


@pytest.mark.browser
def test_without_javascript_the_figures_are_text(report, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert "first_step" in page.locator("noscript pre").inner_text()
    context.close()
