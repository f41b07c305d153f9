"""Properties of the critical path over generated requests, and a second algorithm that must agree with it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector import names
from connector.stages import UNEXPLAINED
from stack.analysis import path_plan
from stack.analysis.critical_path import NoCriticalPath, critical_path
from stack.analysis.request import request_spans
from stack.analysis.synthetic import MS, US, Figures, plain_trace, pull_trace, push_trace, reuse_trace
from stack.analysis.trace import Event, Trace
from tests.stack.analysis.swept import swept

BUILDERS = {
    "push": push_trace,
    "pull": pull_trace,
    "reuse": reuse_trace,
    "first turn": lambda f, **options: reuse_trace(f, names.REUSE_MISS, **options),
}
durations = st.integers(0, 50 * MS)


@st.composite
def figures(draw) -> Figures:
    """Any request the contract allows, with the registration first or last and with or without a handshake."""
    lead = draw(st.integers(0, 30 * MS))
    return Figures(
        route=draw(durations),
        prefill_hop=draw(durations),
        prefill_queue=draw(durations),
        prefill=draw(st.integers(30 * MS, 200 * MS)),
        decode_hop=draw(st.integers(0, 400 * MS)),
        register=draw(durations),
        registration_hop=draw(durations),
        worker_hop=draw(st.integers(0, 100 * US)),
        response_hop=draw(durations),
        late_route=draw(durations),
        handshake=draw(st.sampled_from([0, 20 * MS, 60 * MS])),
        handshake_lead=lead,
        prepare=draw(st.integers(100 * US, 20 * MS)),
        submit=draw(durations),
        flight=draw(st.integers(1 * MS, 50 * MS)),
        stagger=draw(durations),
        poll_gap=draw(st.integers(0, 1 * MS)),
        completion_hop=draw(durations),
        notify=draw(durations),
        first_step=draw(durations),
        deliver=draw(durations),
        reuse_handshake=draw(st.sampled_from([0, 15 * MS])),
        reuse_prepare=draw(durations),
        reuse_submit=draw(durations),
        reuse_flight=draw(st.integers(1 * MS, 50 * MS)),
        reuse_notify=draw(durations),
    )


requests = st.tuples(st.sampled_from(list(BUILDERS)), figures(), st.integers(1, 3))


def build(case: tuple[str, Figures, int], **options: object) -> Trace:
    mode, f, ranks = case
    return BUILDERS[mode](f, ranks=ranks, **options)


def totals_of(trace: Trace) -> dict[str, int]:
    path = critical_path(trace)
    return {**path.stages, UNEXPLAINED: path.unexplained_ns}


def moved(trace: Trace, services: dict[str, int]) -> Trace:
    """The trace as processes would have stamped it whose clocks show so much too much."""
    return Trace(trace.trace_id, tuple(s.shifted(services.get(s.resource.service_name, 0)) for s in trace.spans))


@given(requests)
@settings(max_examples=150, deadline=None)
def test_two_algorithms_agree(case):
    trace = build(case)
    assert totals_of(trace) == swept(trace)


@given(requests, st.data())
@settings(max_examples=150, deadline=None)
def test_stages_and_unexplained_equal_ttft_exactly_whatever_the_trace_holds(case, data):
    trace = build(case, boot_ids=data.draw(st.sampled_from([{}, {names.SERVICE_PREFILL: "b"}])))
    spans = []
    for span in trace.spans:
        fate = data.draw(st.sampled_from(["keep", "keep", "keep", "keep", "drop", "shift", "reverse"]))
        if span.kind == 2 and span.resource.service_name == names.SERVICE_ROUTER:
            fate = "keep"
        if fate == "shift":
            span = span.shifted(data.draw(st.integers(-300 * MS, 300 * MS)))
        if fate == "reverse":
            span = replace(span, start_ns=span.end_ns, end_ns=span.start_ns)
        if fate != "drop":
            spans.append(span)
    path = critical_path(Trace(trace.trace_id, tuple(spans)))
    assert sum(path.stages.values()) + path.unexplained_ns == path.ttft_ns
    assert path.segments[0].start_ns == path.start_ns
    assert all(a.end_ns == b.start_ns for a, b in pairwise(path.segments))
    negative = [s.duration_ns for s in path.segments if s.duration_ns < 0]
    assert [a.value_ns for a in path.anomalies] == negative


MUTANTS = {
    "the first transfer instead of the last": ("_last_transfer", lambda r: min(r.transfers, key=lambda t: t.rank)),
    "a late registration forgotten": ("_push_handoff", lambda draft, r, t: r.compute.end_ns),
    "handshakes forgotten": (
        "_plan_preparation",
        lambda draft, t, h, ready, prefix="": draft.add("prepare", ready, t.prepare.end_ns),
    ),
    "completions forgotten": ("_last_completion", lambda r: None),
    "P's READ forgotten": ("_plan_reuse", lambda draft, r: None),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_second_algorithm_notices_a_wrong_path(mutant, monkeypatch):
    early = Figures(handshake=20 * MS, handshake_lead=5 * MS, poll_gap=MS, completion_hop=0, stagger=5 * MS)
    late = replace(early, decode_hop=2000 * MS)
    traces = [push_trace(early, ranks=2), push_trace(late, ranks=2), reuse_trace(early)]
    assert all(totals_of(trace) == swept(trace) for trace in traces)
    monkeypatch.setattr(path_plan, *MUTANTS[mutant])
    assert any(totals_of(trace) != swept(trace) for trace in traces)


STAGE_FIGURES = {
    "push": ("route", "prefill_queue", "prefill", "prepare", "submit", "flight", "first_step", "deliver", "notify"),
    "pull": ("route", "prefill_queue", "prefill", "prepare", "submit", "flight", "first_step", "deliver", "notify"),
}
STAGE_FIGURES["first turn"] = STAGE_FIGURES["pull"]
STAGE_FIGURES["reuse"] = (*STAGE_FIGURES["pull"], "reuse_prepare", "reuse_submit", "reuse_flight", "reuse_notify")


@given(requests, st.integers(1, 50 * MS), st.data())
@settings(max_examples=150, deadline=None)
def test_a_delay_in_one_stage_raises_exactly_that_stage(case, delay, data):
    mode, f, ranks = case
    if mode == "push":
        f = replace(f, decode_hop=0, register=0, registration_hop=0)  # the registration is there: prefill is the path
    stage = data.draw(st.sampled_from(STAGE_FIGURES[mode]))
    slower = replace(f, **{stage: getattr(f, stage) + delay})
    before, after = totals_of(build((mode, f, ranks))), totals_of(build((mode, slower, ranks)))
    assert {s: after[s] - before[s] for s in after if after[s] != before[s]} == {stage: delay}


@given(requests, st.integers(1, 50 * MS))
@settings(max_examples=100, deadline=None)
def test_a_late_registration_is_handoff_and_an_early_one_is_overlapped(case, delay):
    _, f, ranks = case
    early = replace(f, decode_hop=0, register=1 * MS, registration_hop=0)
    path = critical_path(push_trace(early, ranks=ranks))
    assert path.stages["handoff"] == 0
    assert path.last_arrival == "prefill"
    assert path.overlapped_ns["registration"] == 1 * MS
    finished = f.prefill_hop + f.prefill_queue + f.prefill
    late = replace(f, decode_hop=finished + f.worker_hop, register=0, registration_hop=delay)
    path = critical_path(push_trace(late, ranks=ranks))
    assert path.last_arrival == "registration"
    assert path.stages["handoff"] == f.worker_hop + delay


@given(requests, st.integers(-(10**12), 10**12))
@settings(max_examples=100, deadline=None)
def test_one_clock_is_never_moved_and_all_clocks_together_change_nothing(case, offset):
    trace = build(case)
    everywhere = moved(trace, dict.fromkeys({s.resource.service_name for s in trace.spans}, offset))
    path, shifted = critical_path(trace), critical_path(everywhere)
    assert shifted.stages == path.stages
    assert (path.clock_uncertainty_ns, shifted.clock_uncertainty_ns) == (0, 0)


@given(requests, st.integers(-(10**11), 10**11), st.integers(-(10**11), 10**11))
@settings(max_examples=150, deadline=None)
def test_other_clocks_change_every_stage_by_no_more_than_the_uncertainty(case, of_prefill, of_decode):
    hosts = {names.SERVICE_PREFILL: "b", names.SERVICE_DECODE: "c"}
    clocks = {names.SERVICE_PREFILL: of_prefill, names.SERVICE_DECODE: of_decode}
    truth = critical_path(build(case))
    seen = critical_path(build(case, boot_ids=hosts, clocks=clocks))
    assert seen.ttft_ns == truth.ttft_ns
    assert not [note for note in seen.notes if "contradict" in note or "before it was sent" in note]
    assert seen.clock_uncertainty_ns is not None
    for stage, ns in truth.stages.items():
        pieces = 2 if stage.endswith("prepare") else 1  # a handshake splits it
        assert abs(seen.stages[stage] - ns) <= pieces * seen.clock_uncertainty_ns


def test_a_handshake_counts_only_after_the_transfer_could_have_started():
    f = Figures(handshake=30 * MS, handshake_lead=12 * MS)
    path = critical_path(push_trace(f))
    assert path.stages["handshake"] == 18 * MS
    assert path.overlapped_ns["handshake"] == 12 * MS


def test_a_write_that_outlives_the_prefill_response_stays_on_the_path():
    trace = push_trace(Figures(response_hop=0, flight=200 * MS))
    r = request_spans(trace)
    assert r.transfers[0].span.end_ns > r.leg_prefill.end_ns
    assert critical_path(trace).stages["flight"] == 200 * MS


def test_a_transfer_that_ended_inside_the_post_call_is_submit_and_not_a_negative_flight():
    trace = push_trace(Figures(submit=5 * MS, flight=0, poll_gap=2 * MS, completion_hop=0, notify=9 * MS))
    path = critical_path(trace)
    assert (path.stages["submit"], path.stages["flight"], path.stages["notify"]) == (3 * MS, 0, 9 * MS)
    assert path.notes == ("transfer ended 2000000 ns before the post call returned",)
    assert path.anomalies == ()


def test_a_span_that_goes_back_in_time_stays_visible_and_in_the_sum():
    trace = pull_trace()
    late = [replace(s, start_ns=s.end_ns + 7 * MS) if s.name == "kvpath.first_step" else s for s in trace.spans]
    path = critical_path(Trace(trace.trace_id, tuple(late)))
    (anomaly,) = path.anomalies
    assert (anomaly.stage, anomaly.value_ns) == ("first_step", -7 * MS)
    assert path.stages["first_step"] == -7 * MS
    assert sum(path.stages.values()) + path.unexplained_ns == path.ttft_ns


def test_a_missing_span_is_named_and_its_time_is_unexplained():
    trace = pull_trace()
    whole = critical_path(trace)
    without = Trace(trace.trace_id, tuple(s for s in trace.spans if s.name != "kvpath.read.flight"))
    path = critical_path(without)
    assert path.missing == ("kvpath.read.flight",)
    lost = whole.stages["flight"] + whole.stages["notify"]
    assert path.unexplained_ns == whole.unexplained_ns + lost


@pytest.mark.parametrize(("lost", "whole"), [(names.LOST_START, False), (names.LOST_END, False), ("size", True)])
def test_a_half_known_span_measures_nothing(lost, whole):
    trace = pull_trace()
    compute = next(span for span in trace.spans if span.name == names.SPAN_PREFILL_COMPUTE)
    lossy = replace(compute, attributes={**compute.attributes, names.ATTR_INCOMPLETE: (lost,)})
    path = critical_path(Trace(trace.trace_id, tuple(lossy if s is compute else s for s in trace.spans)))
    assert path.missing == (() if whole else (names.SPAN_PREFILL_COMPUTE,))
    assert bool(path.stages["prefill"]) is whole
    assert sum(path.stages.values()) + path.unexplained_ns == path.ttft_ns


def test_no_first_token_and_no_server_span_have_no_path():
    trace = pull_trace()
    silent = [replace(s, events=()) for s in trace.spans]
    with pytest.raises(NoCriticalPath, match="first_token"):
        critical_path(Trace(trace.trace_id, tuple(silent)))
    with pytest.raises(NoCriticalPath, match="SERVER span"):
        critical_path(Trace(trace.trace_id, tuple(s for s in trace.spans if s.kind != 2)))


def test_a_retried_leg_counts_from_the_one_that_did_not_fail():
    trace = pull_trace(Figures(route=20 * MS))
    leg = next(s for s in trace.spans if s.name == names.SPAN_LEG_PREFILL)
    failed = replace(leg, span_id="f" * 16, status_code=2, start_ns=leg.start_ns - 15 * MS, end_ns=leg.start_ns - MS)
    path = critical_path(Trace(trace.trace_id, (*trace.spans, failed)))
    assert path.stages["route"] == 20 * MS


def test_plain_takes_queue_and_prefill_from_vllm_or_says_that_they_are_unknown():
    path = critical_path(plain_trace(Figures(prefill=640 * MS, prefill_queue=2 * MS)))
    assert (path.stages["prefill_queue"], path.stages["prefill"]) == (2 * MS, 640 * MS)
    bare = plain_trace()
    path = critical_path(Trace(bare.trace_id, tuple(s for s in bare.spans if s.name != "llm_request")))
    assert path.notes == ("D's own prefill is not traced: it is unexplained",)
    assert path.stages["route"] + path.unexplained_ns == path.ttft_ns


def test_a_read_of_p_that_failed_cost_time_and_is_no_hole():
    trace = reuse_trace(Figures(reuse_handshake=5 * MS))
    read = next(
        s for s in trace.spans if s.name == names.SPAN_READ and s.resource.service_name == names.SERVICE_PREFILL
    )
    broken = replace(read, status_code=2, attributes={**read.attributes, names.ATTR_ERROR_TYPE: "transfer_failed"})
    lost = {names.SPAN_READ + suffix for suffix in (".prepare", ".submit", ".flight")}
    spans = [s for s in trace.spans if not (s.name in lost and s.parent_span_id == read.span_id)]
    path = critical_path(Trace(trace.trace_id, tuple(broken if s is read else s for s in spans)))
    assert path.missing == ()
    assert path.notes == ("P's READ of what D kept failed: P computed the prompt itself",)
    assert (path.stages["reuse_handshake"], path.stages["reuse_notify"]) == (5 * MS, 2 * MS)
    assert sum(path.stages.values()) + path.unexplained_ns == path.ttft_ns


def test_the_two_reads_of_a_turn_are_told_apart_by_who_read():
    path = critical_path(reuse_trace(Figures(flight=70 * MS, reuse_flight=30 * MS)))
    assert (path.stages["flight"], path.stages["reuse_flight"]) == (70 * MS, 30 * MS)


def test_ps_connection_to_d_is_on_the_path_and_not_hidden():
    path = critical_path(reuse_trace(Figures(reuse_handshake=40 * MS)))
    assert path.stages["reuse_handshake"] == 40 * MS
    assert path.overlapped_total_ns == 0


def test_first_of_several_first_token_events_counts():
    trace = plain_trace()
    root = trace.server_span()
    late = replace(root, events=(*root.events, Event("first_token", root.events[0].time_ns + MS)))
    again = Trace(trace.trace_id, tuple(late if s is root else s for s in trace.spans))
    assert critical_path(again).ttft_ns == critical_path(trace).ttft_ns
