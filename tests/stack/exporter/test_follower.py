"""Against the real trace store: each finished trace is counted once, when nothing more is missing or comes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector import names
from stack.analysis.source import SourceError
from stack.analysis.synthetic import plain_trace, pull_trace, push_trace, reuse_trace
from stack.analysis.trace import STATUS_ERROR, Trace

TRACES = names.METRIC_EXPORTER_TRACES + "_total"
INCOMPLETE = names.METRIC_EXPORTER_INCOMPLETE + "_total"
TTFT_COUNT = names.METRIC_EXPORTER_TTFT + "_count"


def without(trace: Trace, *span_names: str) -> Trace:
    return Trace(trace.trace_id, tuple(s for s in trace.spans if s.name not in span_names))


def only(trace: Trace, *span_names: str) -> Trace:
    return Trace(trace.trace_id, tuple(s for s in trace.spans if s.name in span_names))


def failed(trace: Trace) -> Trace:
    root = trace.server_span()
    assert root is not None
    broken = replace(root, status_code=STATUS_ERROR, attributes={**root.attributes, names.ATTR_ERROR_TYPE: "deadline"})
    return Trace(trace.trace_id, (broken, *(s for s in trace.spans if s is not root)))


def moved(trace: Trace, seconds: float) -> Trace:
    return Trace(trace.trace_id, tuple(s.shifted(int(seconds * 1e9)) for s in trace.spans))


def outcomes(exporter) -> dict[tuple[str, ...], float]:
    return {labels: value for (name, labels), value in exporter.samples().items() if name == TRACES}


def test_every_mode_is_counted_once_however_often_it_is_found(start, send):
    exporter = start()
    send(push_trace(number=1), pull_trace(number=2), reuse_trace(number=3), plain_trace(number=4))
    for seconds in (5, 10, 20, 30):
        assert exporter.poll_at(seconds) == []
    assert outcomes(exporter) == {(mode, "complete"): 1 for mode in ("push", "pull", "reuse", "plain")}
    assert exporter.value(TTFT_COUNT, "push") == 1
    assert exporter.value(names.METRIC_EXPORTER_WAITING) == 0


def test_late_spans_are_waited_for(start, send):
    exporter = start()
    whole = pull_trace(number=1)
    late = names.SPAN_BLOCKS_HELD
    send(without(whole, late))
    exporter.poll_at(5)
    assert exporter.value(names.METRIC_EXPORTER_WAITING) == 1
    assert outcomes(exporter) == {}
    send(only(whole, late))
    exporter.poll_at(20)
    assert outcomes(exporter) == {("pull", "complete"): 1}
    assert exporter.value(names.METRIC_EXPORTER_WAITING) == 0


def test_after_the_grace_it_counts_as_incomplete_with_its_reasons(start, send):
    exporter = start(grace_s=60)
    send(without(pull_trace(number=1), names.SPAN_BLOCKS_HELD, names.SPAN_READ + names.SUFFIX_SUBMIT))
    exporter.poll_at(5)
    exporter.poll_at(64)
    assert outcomes(exporter) == {}
    exporter.poll_at(66)
    assert outcomes(exporter) == {("pull", "incomplete"): 1}
    assert exporter.value(INCOMPLETE, f"span {names.SPAN_BLOCKS_HELD}") == 1
    assert exporter.value(INCOMPLETE, f"span {names.SPAN_READ + names.SUFFIX_SUBMIT}") == 1
    assert exporter.value(TTFT_COUNT, "pull") == 0  # its path lacks a span


def test_a_request_that_still_runs_is_not_counted(start, send):
    exporter = start()
    whole = push_trace(number=1)
    root = whole.server_span()
    send(Trace(whole.trace_id, tuple(s for s in whole.spans if s is not root)))
    exporter.poll_at(5)
    exporter.poll_at(200)
    assert outcomes(exporter) == {}
    send(Trace(whole.trace_id, (replace(root, end_ns=root.end_ns + 200 * 10**9),)))
    exporter.poll_at(205)
    assert outcomes(exporter) == {("push", "complete"): 1}


def test_a_request_whose_router_died_counts_as_incomplete_in_the_sweep(start, send):
    exporter = start()
    whole = push_trace(number=1)
    root = whole.server_span()
    send(Trace(whole.trace_id, tuple(s for s in whole.spans if s is not root)))
    for seconds in (5, 300, 600, 900):
        exporter.poll_at(seconds)
    assert outcomes(exporter) == {}
    exporter.poll_at(1000)
    exporter.poll_at(1061)
    assert outcomes(exporter) == {("push", "incomplete"): 1}
    assert exporter.value(INCOMPLETE, "root") == 1


def test_a_trace_that_reaches_the_store_minutes_late_is_found_by_the_sweep(start, send):
    exporter = start()
    for seconds in (5, 300, 600):
        exporter.poll_at(seconds)
    send(push_trace(number=1))
    exporter.poll_at(605)
    assert outcomes(exporter) == {}
    exporter.poll_at(905)
    exporter.poll_at(1000)
    assert outcomes(exporter) == {("push", "complete"): 1}


def test_failed_requests_are_counted_as_such_at_once_and_give_no_figures(start, send):
    exporter = start()
    send(failed(without(push_trace(number=1), names.SPAN_FIRST_STEP)))
    exporter.poll_at(5)
    assert outcomes(exporter) == {("push", "failed"): 1}
    assert exporter.value(TTFT_COUNT, "push") == 0


def test_a_restart_counts_nothing_twice_and_loses_nothing(start, send):
    exporter = start()
    waiting = pull_trace(number=2)
    send(push_trace(number=1), without(waiting, names.SPAN_BLOCKS_HELD))
    exporter.poll_at(5)
    assert outcomes(exporter) == {("push", "complete"): 1}
    exporter.poll_at(50)
    exporter.restart()
    assert outcomes(exporter) == {}  # counters start at 0, as Prometheus expects
    send(only(waiting, names.SPAN_BLOCKS_HELD), moved(push_trace(number=3), 52))
    exporter.poll_at(55)
    exporter.poll_at(60)
    assert outcomes(exporter) == {("pull", "complete"): 1, ("push", "complete"): 1}


def test_a_span_that_joins_hours_later_does_not_count_its_request_again(start, send):
    """D may keep a conversation's blocks for long; by then the request itself is forgotten."""
    exporter = start()
    whole = reuse_trace(number=1)
    send(whole)
    exporter.poll_at(5)
    for seconds in range(1000, 8000, 1000):
        exporter.poll_at(seconds)
    assert exporter.state.uncounted([whole.trace_id]) == {whole.trace_id}
    held = only(whole, names.SPAN_BLOCKS_HELD).spans[-1]
    send(Trace(whole.trace_id, (replace(held, span_id="e" * 16, end_ns=held.start_ns + 8000 * 10**9),)))
    exporter.poll_at(8005)
    assert outcomes(exporter) == {("reuse", "complete"): 1}
    exporter.restart()
    exporter.poll_at(8010)
    assert outcomes(exporter) == {}
    send(moved(push_trace(number=2), 8010))
    exporter.poll_at(8015)
    assert outcomes(exporter) == {("push", "complete"): 1}


def test_what_ended_while_the_exporter_was_stopped_is_counted_afterwards(start, send):
    exporter = start()
    exporter.poll_at(0)
    exporter.restart()
    send(*(moved(push_trace(number=n), 900 * n) for n in range(1, 9)))
    exporter.poll_at(8000)
    while exporter.follower.busy:
        exporter.poll_at(8000)
    assert outcomes(exporter) == {("push", "complete"): 8}


def test_the_first_start_begins_now_or_since(start, send):
    send(push_trace(number=1))
    fresh, since = start("fresh.db"), start("since.db", since_s=0)
    fresh.clock.now += 65  # past the request, within the look-back of the first search
    since.close()
    now, back = start("now.db"), start("back.db", since_s=30)
    for exporter in (now, back):
        exporter.poll_at(5)
    assert outcomes(now) == {}
    assert outcomes(back) == {("push", "complete"): 1}
    assert now.value(names.METRIC_EXPORTER_SAMPLES, "push") == 0
    assert back.value(names.METRIC_EXPORTER_SAMPLES, "push") == 1


def test_more_traces_than_a_search_returns(start, send):
    exporter = start(limit=5)
    send(*(moved(push_trace(number=n), n % 7) for n in range(1, 61)))
    assert exporter.poll_at(20) == []
    assert outcomes(exporter) == {("push", "complete"): 60}


def test_a_second_with_more_traces_than_a_store_returns_at_all_is_said(start, send, monkeypatch):
    monkeypatch.setattr("stack.exporter.scan.MAX_LIMIT", 8)
    exporter = start(limit=4)
    send(*(push_trace(number=n) for n in range(1, 21)))
    problems = exporter.poll_at(5)
    assert problems
    assert all("holds more traces than a search returns" in problem for problem in problems)
    assert outcomes(exporter) == {("push", "complete"): 8}


def test_instances_divide_the_traces(start, send):
    instances = [start(f"{shard}.db", shard=shard, shards=3) for shard in range(3)]
    send(*(push_trace(number=n) for n in range(1, 31)))
    counts = []
    for instance in instances:
        instance.poll_at(5)
        counts.append(outcomes(instance)["push", "complete"])
    assert sum(counts) == 30
    assert all(counts)


def test_a_trace_that_the_store_cannot_give_does_not_stop_the_others(start, send, monkeypatch):
    exporter = start()
    send(push_trace(number=1), push_trace(number=2))
    fetch = exporter.source.fetch

    def broken(trace_id: str) -> Trace | None:
        if trace_id.endswith("1"):
            raise SourceError("answered 500: trace exceeds max size")
        return fetch(trace_id)

    monkeypatch.setattr(exporter.source, "fetch", broken)
    assert exporter.poll_at(5) == ["answered 500: trace exceeds max size"]
    assert outcomes(exporter) == {("push", "complete"): 1}
    with pytest.raises(SourceError, match="max size"):  # alone, it is the store's failure
        exporter.poll_at(500)
    assert exporter.poll_at(910) == ["answered 500: trace exceeds max size"]  # and is given up
    assert outcomes(exporter) == {("push", "complete"): 1, ("unknown", "incomplete"): 1}
    assert exporter.value(INCOMPLETE, "unreadable") == 1


def test_lag_is_the_age_of_what_is_not_counted_yet(start, send):
    exporter = start()
    lag = names.METRIC_EXPORTER_LAG
    exporter.poll_at(5)
    assert exporter.value(lag) == 0
    waiting = pull_trace(number=1)
    send(without(waiting, names.SPAN_BLOCKS_HELD))
    exporter.poll_at(10)
    ended = waiting.server_span().end_ns / 1e9
    assert exporter.value(lag) == pytest.approx(exporter.clock.now - ended, abs=1e-3)
    exporter.clock.now += 3
    assert exporter.value(lag) == pytest.approx(exporter.clock.now - ended, abs=1e-3)
    send(only(waiting, names.SPAN_BLOCKS_HELD))
    exporter.poll_at(60)
    assert exporter.value(lag) == 0


def test_a_mutant_that_counts_before_it_waits_would_be_seen(start, send, monkeypatch):
    """The oracle of the tests above can fail: with settled traces everywhere, the late span comes too late."""
    exporter = start()
    monkeypatch.setattr(exporter.follower, "_is_final", lambda waiting, now: True)
    send(without(pull_trace(number=1), names.SPAN_BLOCKS_HELD))
    exporter.poll_at(5)
    assert outcomes(exporter) == {("pull", "incomplete"): 1}
