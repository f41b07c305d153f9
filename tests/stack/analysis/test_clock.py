"""Clock offsets: the truth always lies in the interval, and contradictions are reported instead of hidden."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from connector import names
from stack.analysis.clock import Bounds, Message, align, domain_names, estimate
from stack.analysis.compare import pooled_bounds
from stack.analysis.critical_path import aligned_request, critical_path, trace_bounds
from stack.analysis.synthetic import MS, US, Figures, pull_trace, push_trace
from stack.analysis.trace import KIND_CLIENT, Resource, Trace

P, D = names.SERVICE_PREFILL, names.SERVICE_DECODE
HOSTS = {P: "boot-p", D: "boot-d"}
offsets = st.integers(-(10**12), 10**12)
hops = st.integers(1, 20 * MS)


def bounds_of(*found: tuple[str, str, int]) -> Bounds:
    return Bounds.of(Message("m", a, 0, b, slack) for a, b, slack in found)


@given(st.sampled_from([push_trace, pull_trace]), offsets, offsets, hops, hops, hops)
@settings(max_examples=100, deadline=None)
def test_the_true_offset_lies_within_the_interval_and_the_uncertainty(build, of_p, of_d, there, back, decode):
    f = Figures(prefill_hop=there, response_hop=back, decode_hop=decode)
    _, clocks = aligned_request(build(f, boot_ids=HOSTS, clocks={P: of_p, D: of_d}))
    assert clocks.conflicts == ()
    assert clocks.uncertainty_ns is not None
    for boot_id, shown in (("boot-p", of_p), ("boot-d", of_d)):
        lower, upper = clocks.intervals[boot_id]
        assert lower <= -shown <= upper
        assert lower <= clocks.offsets[boot_id] <= upper
        assert abs(clocks.offsets[boot_id] + shown) <= clocks.uncertainty_ns


@given(offsets, offsets)
@settings(max_examples=50, deadline=None)
def test_after_alignment_nothing_arrives_before_it_was_sent(of_p, of_d):
    request, _ = aligned_request(push_trace(boot_ids=HOSTS, clocks={P: of_p, D: of_d}))
    assert all(slack >= 0 for slack, _ in trace_bounds(request.trace).slack.values())


def test_one_boot_id_is_one_clock_with_offset_zero():
    request, clocks = aligned_request(push_trace())
    assert (clocks.offsets, clocks.uncertainty_ns) == ({"boot-a": 0}, 0)
    assert request.trace == push_trace()


def test_an_interval_around_zero_leaves_the_times_alone_and_admits_the_farther_bound():
    clocks = estimate(bounds_of(("r", "p", 9), ("p", "r", 2)), ["p"], "r")
    assert (clocks.offsets["p"], clocks.intervals["p"], clocks.uncertainty_ns) == (0, (-9, 2), 9)


def test_an_interval_beside_zero_is_met_in_the_middle_with_half_its_width():
    clocks = estimate(bounds_of(("r", "p", -10), ("p", "r", 20)), ["p"], "r")
    assert (clocks.offsets["p"], clocks.uncertainty_ns) == (15, 5)


def test_without_an_answer_one_side_is_unbounded_and_says_so():
    clocks = estimate(bounds_of(("r", "p", -10)), ["p"], "r")
    assert (clocks.offsets["p"], clocks.intervals["p"], clocks.uncertainty_ns) == (10, (10, None), None)
    assert estimate(Bounds(), ["p"], "r").uncertainty_ns is None


def test_a_message_between_p_and_d_narrows_both():
    found = bounds_of(("r", "p", 100), ("p", "r", 100), ("r", "d", 100), ("d", "r", 100), ("p", "d", -120))
    clocks = estimate(found, ["p", "d"], "r")
    assert clocks.intervals == {"r": (0, 0), "p": (-100, -20), "d": (20, 100)}
    assert clocks.offsets["d"] - clocks.offsets["p"] >= 120


def test_a_contradiction_is_reported_and_part_of_the_uncertainty():
    clocks = estimate(bounds_of(("r", "p", -10), ("p", "r", -4)), ["p"], "r")
    assert clocks.intervals["p"] == (10, -4)
    assert clocks.offsets["p"] == 3
    assert clocks.uncertainty_ns == 7
    assert len(clocks.conflicts) == 2
    assert "contradict" in clocks.conflicts[0]


def test_a_contradiction_in_a_circle_of_three_is_reported():
    found = bounds_of(("r", "p", 5), ("p", "r", 5), ("r", "d", 5), ("d", "r", 5), ("p", "d", -50))
    assert any("contradict" in conflict for conflict in estimate(found, ["p", "d"], "r").conflicts)


def test_time_running_backwards_on_one_clock_is_reported_in_the_path():
    trace = pull_trace()
    early = [s.shifted(-400 * MS) if s.name == names.SPAN_PREFILL_QUEUE else s for s in trace.spans]
    path = critical_path(Trace(trace.trace_id, tuple(early)))
    assert any("prefill request was received" in note for note in path.notes)
    assert path.anomalies


def test_many_traces_narrow_the_interval():
    hops_ = [(9, 2), (3, 8), (6, 6)]
    traces = [
        pull_trace(Figures(prefill_hop=a * MS, response_hop=b * MS), number=n, boot_ids=HOSTS, clocks={P: 500 * MS})
        for n, (a, b) in enumerate(hops_, start=1)
    ]
    pooled = pooled_bounds(traces)
    alone = critical_path(traces[0])
    together = critical_path(traces[0], pooled)
    _, clocks = aligned_request(traces[0], pooled)
    assert clocks.intervals["boot-p"] == (-503 * MS, -498 * MS)
    assert together.clock_uncertainty_ns < alone.clock_uncertainty_ns


def test_pools_that_drifted_apart_are_not_used_and_say_so():
    still = pull_trace(number=1, boot_ids=HOSTS)
    later = pull_trace(number=2, boot_ids=HOSTS, clocks={P: 10_000 * MS})
    path = critical_path(still, pooled_bounds([still, later]))
    alone = critical_path(still)
    assert path.stages == alone.stages
    assert path.clock_uncertainty_ns == alone.clock_uncertainty_ns
    assert all(note.startswith("pooled over traces: ") for note in path.notes)
    assert path.notes


def test_a_registration_bounds_d_against_p():
    late = Figures(decode_hop=1500 * MS, register=2 * MS, registration_hop=100 * US)
    slack = trace_bounds(push_trace(late, boot_ids=HOSTS)).slack
    assert slack["boot-d", "boot-p"] == (100 * US, "registration")
    assert slack["boot-p", "boot-d"][1] == "WRITE"


def test_spans_without_a_boot_id_take_that_of_their_service_or_else_stand_alone():
    trace = push_trace(boot_ids=HOSTS)
    bare = Resource({"service.name": P})
    strange = Resource({"service.name": "elsewhere"})
    spans = list(trace.spans)
    spans[-1] = replace(spans[-1], resource=bare)
    spans[-2] = replace(spans[-2], resource=strange)
    found = domain_names(Trace(trace.trace_id, tuple(spans)))
    assert found[id(bare)] == "boot-p"
    assert found[id(strange)] == "service elsewhere"


def test_alignment_moves_events_with_their_spans():
    trace = push_trace(boot_ids=HOSTS, clocks={D: 7000 * MS})
    _, clocks = aligned_request(trace)
    moved = align(trace, clocks, domain_names(trace))
    for before, after in zip(trace.spans, moved.spans, strict=True):
        shift = after.start_ns - before.start_ns
        assert shift == after.end_ns - before.end_ns
        assert all(b.time_ns - a.time_ns == shift for a, b in zip(before.events, after.events, strict=True))
    assert clocks.offsets["boot-d"] != 0


def test_a_completion_of_an_unknown_rank_still_bounds_p_against_d():
    trace = push_trace(boot_ids=HOSTS)
    spans = []
    for span in trace.spans:
        events = tuple(
            replace(e, attributes={**e.attributes, names.ATTR_PRODUCER_RANK: -1}) if e.name == "completion" else e
            for e in span.events
        )
        spans.append(replace(span, events=events))
    unknown = Trace(trace.trace_id, tuple(spans))
    assert trace_bounds(unknown).slack == trace_bounds(trace).slack
    assert critical_path(unknown).stages == critical_path(trace).stages


def test_the_clock_of_whoever_sent_the_request_is_of_no_concern():
    trace = push_trace(number=1, boot_ids=HOSTS)
    root = trace.server_span()
    elsewhere = Resource({"service.name": "a client", "host.name": "far away"})
    client = replace(root, name="ask", span_id="c" * 16, kind=KIND_CLIENT, attributes={}, resource=elsewhere)
    found = critical_path(Trace(trace.trace_id, (*trace.spans, client)))
    assert found.clock_uncertainty_ns == critical_path(trace).clock_uncertainty_ns is not None
