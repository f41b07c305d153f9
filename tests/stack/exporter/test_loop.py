"""What the thread does with a poll's end, without the thread."""

from __future__ import annotations

import logging

import pytest

from connector import names
from stack.analysis.source import SourceError
from stack.exporter.loop import PollLoop
from stack.exporter.metrics import ExporterMetrics

ERRORS = names.METRIC_EXPORTER_POLL_ERRORS + "_total"


class Scripted:
    """A follower whose polls end as a test says."""

    busy = False

    def __init__(self, *ends: object) -> None:
        self.ends = list(ends)

    def poll(self) -> list[str]:
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


@pytest.fixture
def run(caplog):
    caplog.set_level(logging.WARNING, "stack.exporter")

    def begin(*ends: object):
        metrics = ExporterMetrics()
        now = [0.0]
        loop = PollLoop(Scripted(*ends), metrics, 5.0, lambda: now[0])
        return loop, now, lambda: metrics.registry.get_sample_value(ERRORS)

    return begin


def test_health_follows_the_polls(run):
    loop, now, errors = run([], SourceError("gone"), [], [])
    assert loop.trouble() == "no poll has succeeded yet"
    loop.step()
    assert loop.trouble() == ""
    loop.step()
    assert loop.trouble() == "the last poll failed: gone"
    loop.step()
    assert loop.trouble() == ""
    now[0] = 61.0
    assert loop.trouble() == "the last poll ended 61 s ago"
    loop.step()
    assert loop.trouble() == ""
    assert errors() == 1


def test_each_kind_is_logged_once_until_it_is_over(run, caplog):
    loop, _, errors = run(SourceError("a"), SourceError("b"), ["bad"], ["bad"], [], SourceError("c"))
    for _ in range(6):
        loop.step()
    assert [r.getMessage().removeprefix("critical-path exporter: ") for r in caplog.records] == ["a", "bad", "c"]
    assert errors() == 5


def test_what_nobody_expected_is_logged_with_its_traceback_and_survived(run, caplog):
    loop, _, errors = run(ZeroDivisionError("x"), [])
    loop.step()
    assert caplog.records[0].exc_info is not None
    assert "x" in loop.trouble()
    loop.step()
    assert loop.trouble() == ""
    assert errors() == 1


def test_a_backlog_is_worked_off_without_a_pause():
    follower = Scripted(*[[] for _ in range(3)])
    loop = PollLoop(follower, ExporterMetrics(), poll_s=3600.0)
    poll = follower.poll

    def then_stop() -> list[str]:
        follower.busy = len(follower.ends) > 1
        if len(follower.ends) == 1:
            loop._stop.set()
        return poll()

    follower.poll = then_stop
    loop.start()
    assert loop.stop(10.0)
    assert follower.ends == []
