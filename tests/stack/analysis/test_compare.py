"""Aggregation: percentiles, shares, what is left out and why, and when a percentile is believed."""

from __future__ import annotations

from dataclasses import replace
from statistics import quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector import names
from connector.stages import STAGE_NAMES, UNEXPLAINED
from stack.analysis.compare import analyse, analyse_all, believed, compare, percentile
from stack.analysis.report_text import report_text
from stack.analysis.synthetic import MS, Figures, plain_trace, pull_trace, push_trace
from stack.analysis.terminal import Terminal
from stack.analysis.trace import STATUS_ERROR, Trace


def without(trace: Trace, name: str) -> Trace:
    return Trace(trace.trace_id, tuple(s for s in trace.spans if s.name != name))


def with_root(trace: Trace, **changes: object) -> Trace:
    root = trace.server_span()
    return Trace(trace.trace_id, tuple(replace(s, **changes) if s is root else s for s in trace.spans))


@given(st.lists(st.integers(0, 10**12), min_size=2))
def test_percentiles_are_those_of_the_standard_library(values):
    ordered = sorted(values)
    cuts = quantiles(ordered, n=100, method="inclusive")
    for percent in (50, 90, 99):
        assert percentile(ordered, percent) == pytest.approx(cuts[percent - 1], rel=1e-12, abs=1e-6)


def test_one_sample_is_every_percentile():
    assert percentile([7], 99) == 7


def test_a_percentile_is_believed_with_five_samples_beyond_it():
    assert [believed(n, 50) for n in (9, 10)] == [False, True]
    assert [believed(n, 90) for n in (49, 50)] == [False, True]
    assert [believed(n, 99) for n in (499, 500)] == [False, True]


def test_figures_by_mode():
    prefills = [100, 200, 300, 400]
    traces = [push_trace(Figures(prefill=ms * MS), number=ms) for ms in prefills]
    traces += [pull_trace(Figures(prefill=ms * MS), number=1000 + ms) for ms in prefills]
    comparison = compare(analyse_all([*reversed(traces), plain_trace(number=9)]))
    assert list(comparison.modes) == ["push", "pull", "plain"]
    assert comparison.traces == 9
    push = comparison.modes["push"]
    prefill = push.stages["prefill"].time
    assert (prefill.p50, prefill.mean, prefill.low, prefill.high) == (250 * MS, 250 * MS, 100 * MS, 400 * MS)
    assert (push.seen, push.counted, push.incomplete, push.clock_uncertainty_ns) == (4, 4, 0, 0)
    assert set(push.stages) == {*STAGE_NAMES, UNEXPLAINED}
    assert push.overlapped["registration"].p50 == 2 * MS
    assert comparison.modes["pull"].stages["handoff"].time.p50 > 0


def test_shares_are_means_of_ratios_and_add_up_to_one():
    quick, slow = Figures(prefill=0), Figures(prefill=9000 * MS)
    comparison = compare(analyse_all([push_trace(quick, number=1), push_trace(slow, number=2)]))
    stages = comparison.modes["push"].stages
    assert sum(stage.share for stage in stages.values()) == pytest.approx(1)
    ratios = [f.prefill / ttft for f, ttft in ((quick, 78_700_000), (slow, 9_078_700_000))]
    assert stages["prefill"].share == pytest.approx(sum(ratios) / 2)


def test_what_is_left_out_is_counted_with_its_reason():
    traces = [push_trace(number=n) for n in range(1, 7)]
    root = traces[0].server_span()
    traces[0] = with_root(
        traces[0], status_code=STATUS_ERROR, attributes={**root.attributes, names.ATTR_ERROR_TYPE: "timeout"}
    )
    traces[1] = with_root(traces[1], events=())
    traces[2] = without(traces[2], names.SPAN_FIRST_STEP)
    traces[3] = without(traces[3], names.SPAN_BLOCKS_HELD)
    push = compare(analyse_all(traces)).modes["push"]
    assert push.reasons_excluded == {
        "error: timeout": 1,
        "no first_token event": 1,
        "path lacks kvpath.first_step": 1,
    }
    assert (push.seen, push.counted, push.incomplete) == (6, 3, 3)
    assert push.reasons_incomplete == {
        "event: first_token": 1,
        "span: kvpath.first_step": 1,
        "span: kvpath.blocks.held": 1,
    }


@pytest.mark.parametrize("tail", [0, MS])
def test_a_measurements_own_request_is_in_no_figure(tail):
    own = push_trace(Figures(prefill=900 * MS, tail=tail), number=1)
    root = own.server_span()
    own = with_root(own, attributes={**root.attributes, names.ATTR_UNCOUNTED: names.UNCOUNTED_STEP})
    push = compare(analyse_all([own, push_trace(number=2)])).modes["push"]
    assert (push.seen, push.counted) == (2, 1)
    assert push.reasons_excluded == {"a measurement's own request: step": 1}
    assert push.stages["prefill"].time.high < 900 * MS


def test_a_trace_of_unknown_mode_is_in_no_figure():
    trace = push_trace()
    strange = [replace(s, attributes={**s.attributes, names.ATTR_MODE: "teleport"}) for s in trace.spans]
    mode = compare([analyse(Trace(trace.trace_id, tuple(strange)))]).modes["teleport"]
    assert (mode.counted, mode.ttft, mode.stages) == (0, None, {})
    assert mode.reasons_excluded == {"unknown mode 'teleport'": 1}


def test_a_trace_without_the_router_is_left_out():
    orphans = Trace("1" * 32, push_trace().spans[3:6])
    mode = compare([analyse(orphans)]).modes["push"]
    assert mode.reasons_excluded == {"no SERVER span of kvpath-router": 1}


def refused_trace(error_type: str = "bad_request", status: int = 400, **changes: str) -> Trace:
    """All that the router writes of a request that it refuses before a mode is decided."""
    root = plain_trace().server_span()
    told = {names.ATTR_MODE: names.MODE_NONE, names.ATTR_ERROR_TYPE: error_type, names.ATTR_HTTP_STATUS: status}
    attributes = {**root.attributes, **told, **changes}
    return Trace("5" * 32, (replace(root, status_code=STATUS_ERROR, events=(), attributes=attributes),))


def test_a_refused_request_lost_nothing_and_is_told_with_its_status():
    found = analyse(refused_trace())
    assert (found.mode, found.defects, found.path, found.failed) == ("none", (), None, True)
    assert found.excluded == "error: bad_request (status 400)"
    comparison = compare([analyse(push_trace()), found, analyse(refused_trace("bad_request", 413))])
    none = comparison.modes["none"]
    assert (none.seen, none.counted, none.failed, none.incomplete) == (2, 0, 2, 0)
    assert comparison.modes["push"].failed == 0
    text = report_text(comparison, Terminal(120))
    assert "none (refused before a mode was decided): 2 seen, 0 counted, 2 left out (2 failed), 0 incomplete" in text
    assert "left out: 1 × error: bad_request (status 400)" in text  # noqa: RUF001


def test_an_engines_own_status_is_told_once():
    assert analyse(refused_trace("503", 503, **{names.ATTR_MODE: "plain"})).excluded == "error: 503"


def test_only_a_refused_request_may_have_no_mode():
    served = push_trace()
    spans = [replace(s, attributes={**s.attributes, names.ATTR_MODE: names.MODE_NONE}) for s in served.spans]
    assert "attribute: kvpath.mode is 'none'" in map(str, analyse(Trace(served.trace_id, tuple(spans))).defects)


def test_the_largest_clock_uncertainty_is_kept_and_unbounded_wins():
    hosts = {names.SERVICE_PREFILL: "b"}
    near = pull_trace(number=1)
    far = pull_trace(number=2, boot_ids=hosts)
    assert compare([analyse(near), analyse(far)]).modes["pull"].clock_uncertainty_ns > 0
    unanswered = without(without(far, names.SPAN_LEG_PREFILL), names.SPAN_BLOCKS_HELD)
    assert analyse(unanswered).path.clock_uncertainty_ns is None


def test_nothing_compares_to_nothing():
    assert compare([]).modes == {}


def test_an_answer_in_one_piece_has_no_first_token_to_compare():
    whole = pull_trace(Figures(tail=0))
    assert analyse(whole).excluded == "not streamed: its first token is its last byte"


def cached(trace: Trace, gone: tuple[str, ...]) -> Trace:
    """The trace as it is when D finds the whole prompt in its own prefix cache."""
    steps = [
        replace(s, attributes={**s.attributes, names.ATTR_EXTERNAL_TOKENS: 0}) if s.name == names.SPAN_FIRST_STEP else s
        for s in trace.spans
    ]
    return Trace(trace.trace_id, tuple(s for s in steps if not s.name.startswith(gone)))


@pytest.mark.parametrize(
    ("trace", "gone"),
    [
        (pull_trace(), ("kvpath.read",)),
        (push_trace(), ("kvpath.write", "kvpath.register", "kvpath.rendezvous", "kvpath.await")),
    ],
    ids=["pull", "push"],
)
def test_a_request_without_a_transfer_is_complete_and_left_out(trace, gone):
    found = analyse(cached(trace, gone))
    assert found.defects == ()
    assert found.path.anomalies == ()
    assert found.path.missing == ()
    assert found.excluded == "nothing transferred: D had the prompt cached"
    assert sum(found.path.stages.values()) + found.path.unexplained_ns == found.path.ttft_ns
    assert found.path.stages["first_step"] == 60 * MS


def test_push_with_the_prompt_cached_on_d_does_not_wait_for_p():
    trace = cached(push_trace(), ("kvpath.write", "kvpath.register", "kvpath.rendezvous", "kvpath.await"))
    early = -800 * MS
    spans = [s.shifted(early) if s.name == names.SPAN_FIRST_STEP else s for s in trace.spans]
    root = trace.server_span()
    event = replace(root.events[0], time_ns=root.events[0].time_ns + early)
    found = analyse(with_root(Trace(trace.trace_id, tuple(spans)), events=(event,)))
    assert found.path.anomalies == ()
    assert found.path.stages["prefill"] == 0


def test_a_fall_back_is_plain_though_its_attempt_was_pull():
    """P answered without transfer parameters: the attempt's spans keep their mode, D's leg follows in mode plain."""
    attempt = pull_trace(Figures(tail=0))
    tried = [s for s in attempt.spans if s.name in (names.SPAN_LEG_PREFILL, names.SPAN_PREFILL_COMPUTE)]
    plain = plain_trace(Figures(route=820 * MS))
    root = plain.server_span()
    plain = with_root(plain, attributes={**root.attributes, names.ATTR_FALLBACK: "no kv_transfer_params"})
    request = root.attributes[names.ATTR_REQUEST_ID]
    leg, compute = (
        replace(s, span_id=f"{n:016x}", attributes={**s.attributes, names.ATTR_REQUEST_ID: request})
        for n, s in enumerate(tried, start=1)
    )
    leg = replace(leg, parent_span_id=root.span_id)
    compute = replace(compute, parent_span_id=leg.span_id)
    found = analyse(Trace(plain.trace_id, (*plain.spans, leg, compute)))
    assert (found.mode, found.defects, found.excluded) == ("plain", (), "")
    assert found.path.stages["route"] == 820 * MS
    assert found.path.stages["prefill"] == 800 * MS
    assert any("prefill leg whose answer could not be used" in note for note in found.path.notes)
