from __future__ import annotations

from dataclasses import replace

import pytest

from connector import names
from stack.analysis.complete import Defect
from stack.analysis.request import SPAN_LLM_REQUEST
from stack.analysis.synthetic import Figures, pull_trace, push_trace
from stack.analysis.trace import KIND_CLIENT, STATUS_ERROR, Resource, Trace
from stack.exporter.judge import MODE_UNKNOWN, RecentBounds, _reason, judge

BOOTS = {names.SERVICE_ROUTER: "r", names.SERVICE_PREFILL: "p", names.SERVICE_DECODE: "d"}


def with_root(trace: Trace, **changes: object) -> Trace:
    root = trace.server_span()
    return Trace(trace.trace_id, tuple(replace(s, **changes) if s is root else s for s in trace.spans))


def test_a_whole_trace_settles_and_has_a_path():
    found = judge(push_trace(number=1))
    assert (found.mode, found.outcome, found.settled, found.reasons) == ("push", "complete", True, ())
    assert found.path is not None


def test_a_negative_stage_gives_no_figures_and_is_counted():
    """A sum that falls would look like a restart to Prometheus; a clipped stage would not add up."""
    found = judge(push_trace(Figures(notify=-5_000_000), number=1))
    assert found.path is None
    assert (found.outcome, found.reasons) == ("incomplete", ("negative",))


def test_an_answer_in_one_piece_is_complete_and_gives_no_figures():
    trace = push_trace(Figures(tail=0), number=1)
    found = judge(trace)
    assert (found.outcome, found.path) == ("complete", None)


def test_a_measurements_own_request_counts_as_such_and_is_waited_for_no_longer():
    whole = push_trace(number=1)
    attributes = {**whole.server_span().attributes, names.ATTR_UNCOUNTED: names.UNCOUNTED_WARM_UP}
    for trace in (whole, Trace(whole.trace_id, tuple(s for s in whole.spans if s.name != names.SPAN_BLOCKS_HELD))):
        found = judge(with_root(trace, attributes=attributes))
        assert (found.outcome, found.settled, found.reasons, found.path) == ("uncounted", True, (), None)


def test_a_mode_that_nobody_knows_does_not_become_a_label():
    root = push_trace(number=1).server_span()
    found = judge(with_root(push_trace(number=1), attributes={**root.attributes, names.ATTR_MODE: "teleport"}))
    assert (found.mode, found.outcome) == (MODE_UNKNOWN, "incomplete")


def test_a_refused_request_has_failed_and_lacks_nothing():
    root = push_trace(number=1).server_span()
    attributes = {**root.attributes, names.ATTR_MODE: names.MODE_NONE, names.ATTR_ERROR_TYPE: "bad_request"}
    refused = replace(root, status_code=STATUS_ERROR, events=(), attributes=attributes)
    found = judge(Trace("1" * 32, (refused,)))
    assert (found.mode, found.outcome, found.settled, found.reasons) == ("none", "failed", True, ())


def test_unbounded_clocks_are_a_reason_of_their_own_and_no_lack():
    trace = pull_trace(number=1)
    root = trace.server_span()
    elsewhere = Resource({"service.name": "an engine without our spans", "host.name": "far away"})
    more = replace(root, name=SPAN_LLM_REQUEST, span_id="c" * 16, kind=KIND_CLIENT, resource=elsewhere)
    legs = [s.span_id for s in trace.spans if s.name == names.SPAN_LEG_DECODE]
    found = judge(Trace(trace.trace_id, (*trace.spans, replace(more, parent_span_id=legs[0], attributes={}))))
    assert (found.outcome, found.settled, found.reasons) == ("complete", True, ("clock",))
    assert found.path is not None


@pytest.mark.parametrize(
    ("defect", "reason"),
    [
        (Defect("span", "kvpath.rendezvous of rank 3"), "span kvpath.rendezvous"),
        (Defect("attribute", "kvpath.mode is 'what a client sent'"), "attribute"),
        (Defect("telemetry", "evicted"), "telemetry"),
    ],
)
def test_reasons_are_few(defect, reason):
    assert _reason(defect) == reason


def test_bounds_of_many_requests_are_tighter_and_are_forgotten():
    recent = RecentBounds(period_s=60)
    assert recent.add(push_trace(number=1), 0.0) is None  # one clock
    loose = push_trace(Figures(prefill_hop=40_000_000), number=1, boot_ids=BOOTS)
    tight = push_trace(Figures(prefill_hop=1_000_000, response_hop=100_000), number=2, boot_ids=BOOTS)
    alone = judge(loose).path.clock_uncertainty_ns
    recent.add(tight, 1.0)
    pooled = judge(loose, recent.add(loose, 2.0)).path.clock_uncertainty_ns
    assert pooled < alone
    recent.add(loose, 100.0)  # a period later the tight ones still count, two periods later no more
    assert judge(loose, recent.add(loose, 101.0)).path.clock_uncertainty_ns == pooled
    assert judge(loose, recent.add(loose, 200.0)).path.clock_uncertainty_ns == alone
