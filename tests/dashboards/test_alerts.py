from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dashboards import generate
from dashboards.alerts import ALERTS, RECORDS, to_yaml
from dashboards.alerts.rules import Alert, Group
from dashboards.boards import BOARDS
from dashboards.catalogue import known_series
from tests.dashboards.alert_cases import FAILURE_AFTER_RESTART, FIRST_FAILURE, SCRAPED, STORIES, Story
from tests.dashboards.promql import labels_of

RULES = generate.HERE / "alerts" / "kvpath.yaml"
RUNBOOKS = generate.HERE / "alerts" / "runbooks"
KNOWN = {**known_series(), **{record.name: record.labels for record in RECORDS}}
Tool = Callable[[str], Path]

alerts = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)


@alerts
def test_an_alert_asks_for_what_is_exposed_and_speaks_of_labels_that_it_has(alert: Alert) -> None:
    labels = labels_of(alert.expr, KNOWN)
    assert set(re.findall(r"\$labels\.(\w+)", alert.summary)) <= labels


def test_a_record_makes_the_labels_that_it_says() -> None:
    for record in RECORDS:
        assert labels_of(record.expr, KNOWN) == record.labels


@alerts
def test_an_alert_has_a_runbook_and_leads_to_a_dashboard(alert: Alert) -> None:
    text = (RUNBOOKS / f"{alert.name}.md").read_text()
    assert text.startswith(f"# {alert.name}\n")
    for part in ("## What it means", "## What to do", "## When it is wrong"):
        assert part in text
    assert Path(alert.runbook).parts[-3:] == (RUNBOOKS.parent.name, RUNBOOKS.name, f"{alert.name}.md")
    assert alert.dashboard in {board.uid for board in BOARDS}


def test_there_is_no_runbook_without_an_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {alert.name for alert in ALERTS}


def test_every_alert_is_told_to_fire_to_recover_and_to_keep_quiet() -> None:
    for alert in ALERTS:
        stories = [story for story in STORIES if story.alert == alert.name]
        assert any(not story.firing for story in stories), f"{alert.name} is never quiet throughout"
        recovering = [story for story in stories if story.firing and max(story.quiet) > max(story.firing)]
        assert any(min(story.quiet) < min(story.firing) for story in recovering), alert.name
    assert {story.alert for story in STORIES} == {alert.name for alert in ALERTS}


def test_prometheus_accepts_the_rules(tool: Tool) -> None:
    checked = subprocess.run([tool("promtool"), "check", "rules", RULES], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def promtool_test(promtool: Path, folder: Path, rules: str, stories: list[Story]) -> str:
    """Runs stories; returns what promtool complains of, or nothing."""
    tests = [
        {
            "interval": "1m",
            "name": f"{story.alert}: {story.what}",
            "input_series": [
                {"series": name, "values": values} for name, values in {**SCRAPED, **story.happens}.items()
            ],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{story.alert}", alertstate="firing"}})',
                    "eval_time": f"{minute}m",
                    "exp_samples": [{"labels": "{}", "value": 1}] if minute in story.firing else [],
                }
                for minute in sorted((*story.quiet, *story.firing))
            ],
        }
        for story in stories
    ]
    (folder / "rules.yaml").write_text(rules)
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True)
    assert (done.returncode == 0) == ("FAILED" not in done.stderr + done.stdout), done.stdout + done.stderr
    return "" if done.returncode == 0 else done.stdout + done.stderr


def with_expr(alert: Alert, expr: str = "") -> str:
    """A file of the records and this one alert: promtool evaluates every rule at every step of every story."""
    return to_yaml([Group("kvpath", (*RECORDS, replace(alert, expr=expr or alert.expr)))])


@alerts
def test_an_alert_fires_recovers_and_keeps_quiet(alert: Alert, tool: Tool, tmp_path: Path) -> None:
    stories = [story for story in STORIES if story.alert == alert.name]
    assert not promtool_test(tool("promtool"), tmp_path, with_expr(alert), stories)


@pytest.mark.parametrize("mutant", ["vector(0) > 1", "vector(1)"])
def test_a_rule_that_never_or_always_fires_is_found_out(mutant: str, tool: Tool, tmp_path: Path) -> None:
    """The mutants, for the stories' own sake; that every alert has both kinds of story is shown above."""
    alert = next(each for each in ALERTS if each.name == "KvpathTransfersStuck")
    stories = [story for story in STORIES if story.alert == alert.name]
    assert promtool_test(tool("promtool"), tmp_path, with_expr(alert, mutant), stories)


_FAILED = 'kvpath_transfers_total{outcome!="done"}'


@pytest.mark.parametrize(
    ("mutant", "missed"),
    [
        (f"increase({_FAILED}[10m]) > 0", FIRST_FAILURE),
        (f"(({_FAILED} unless {_FAILED} offset 10m) or increase({_FAILED}[10m])) > 0", FAILURE_AFTER_RESTART),
    ],
)
def test_growth_that_misses_the_first_event_of_a_series_is_found_out(
    mutant: str, missed: Story, tool: Tool, tmp_path: Path
) -> None:
    alert = next(each for each in ALERTS if each.name == missed.alert)
    assert not promtool_test(tool("promtool"), tmp_path, with_expr(alert), [missed])
    complaint = promtool_test(tool("promtool"), tmp_path, with_expr(alert, mutant), [missed])
    assert f"time: {min(missed.firing)}m" in complaint
