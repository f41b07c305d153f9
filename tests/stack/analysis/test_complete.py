"""A complete trace has no defect, and every single loss makes one: mutants of each span, link, event and attribute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector import names
from stack.analysis.complete import Defect, defects
from stack.analysis.synthetic import Figures, plain_trace, pull_trace, push_trace, reuse_trace
from stack.analysis.trace import STATUS_ERROR, Resource, Span, Trace

WHOLE = {
    "push": push_trace(ranks=2),
    "push-handshake": push_trace(Figures(handshake=5_000_000)),
    "push-registration-last": push_trace(Figures(decode_hop=2_000_000_000)),
    "pull": pull_trace(ranks=2),
    "reuse": reuse_trace(Figures(reuse_handshake=5_000_000), ranks=2),
    "reuse-miss": reuse_trace(outcome=names.REUSE_MISS),
    "plain": plain_trace(),
}


def optional(span: Span) -> bool:
    """D lets go of kept blocks long after the request; a request without a conversation has nothing to look up."""
    kept = span.name == names.SPAN_BLOCKS_HELD and span.resource.service_name == names.SERVICE_DECODE
    missed = span.attributes.get(names.ATTR_REUSE_OUTCOME) == names.REUSE_MISS
    return kept or missed or span.name == names.SPAN_HANDSHAKE


def with_span(trace: Trace, index: int, span: Span | None) -> Trace:
    spans = list(trace.spans)
    spans[index : index + 1] = [span] if span else []
    return Trace(trace.trace_id, tuple(spans))


def each_span(names_: tuple[str, ...] = tuple(WHOLE)):
    return [
        pytest.param(WHOLE[name], index, span, id=f"{name}-{index}-{span.name}")
        for name in names_
        for index, span in enumerate(WHOLE[name].spans)
    ]


@pytest.mark.parametrize("name", WHOLE)
def test_a_complete_trace_has_no_defect(name):
    assert defects(WHOLE[name]) == []


@pytest.mark.parametrize(("trace", "index", "span"), each_span())
def test_losing_any_span_is_a_defect(trace, index, span):
    found = defects(with_span(trace, index, None))
    assert bool(found) == (span.name != "llm_request" and not optional(span))


@pytest.mark.parametrize(("trace", "index", "span"), each_span())
def test_losing_vllms_spans_is_a_defect_when_they_are_asked_for(trace, index, span):
    found = defects(with_span(trace, index, None), engine_spans=True)
    assert bool(found) == (not optional(span))


@pytest.mark.parametrize(("trace", "index", "span"), each_span())
def test_hanging_any_span_in_the_air_or_under_the_wrong_parent_is_a_defect(trace, index, span):
    astray = with_span(trace, index, replace(span, parent_span_id="e" * 16))
    if span is not trace.server_span():  # the root may be the child of a client's span
        assert any(d.kind == "parent" for d in defects(astray))
        held = next(s for s in trace.spans if s.name in (names.SPAN_BLOCKS_HELD, names.SPAN_ROUTE))
        astray = with_span(trace, index, replace(span, parent_span_id=held.span_id))
        assert any(d.kind == "parent" for d in defects(astray))
    else:
        assert defects(astray) == []


@pytest.mark.parametrize(("trace", "index", "span"), [p for p in each_span() if p.values[2].links])
def test_losing_or_misdirecting_any_link_is_a_defect(trace, index, span):
    for at in range(len(span.links)):
        fewer = span.links[:at] + span.links[at + 1 :]
        assert any(d.kind == "link" for d in defects(with_span(trace, index, replace(span, links=fewer))))
        wrong = replace(span.links[at], span_id="e" * 16)
        astray = replace(span, links=(*fewer, wrong))
        assert any(d.kind in ("link", "span") for d in defects(with_span(trace, index, astray)))


@pytest.mark.parametrize(("trace", "index", "span"), [p for p in each_span() if p.values[2].events])
def test_losing_any_event_is_a_defect(trace, index, span):
    for at in range(len(span.events)):
        fewer = replace(span, events=span.events[:at] + span.events[at + 1 :])
        assert any(d.kind == "event" for d in defects(with_span(trace, index, fewer)))


NEEDED = (names.ATTR_MODE, names.ATTR_REQUEST_ID, names.ATTR_ENGINE_ID, names.ATTR_LAST_ARRIVAL, names.ATTR_PHASE)


@pytest.mark.parametrize(("trace", "index", "span"), [p for p in each_span() if p.values[2].name != "llm_request"])
def test_losing_any_attribute_of_the_contract_is_a_defect(trace, index, span):
    for key in NEEDED:
        if key in span.attributes and not (key == names.ATTR_PHASE and "plain" in span.attributes.values()):
            without = {k: v for k, v in span.attributes.items() if k != key}
            assert defects(with_span(trace, index, replace(span, attributes=without))), key


@pytest.mark.parametrize(("trace", "index", "span"), each_span(("push", "pull")))
def test_losing_the_rank_of_a_worker_span_is_a_defect(trace, index, span):
    if span.name in (names.SPAN_WRITE, names.SPAN_READ, names.SPAN_RENDEZVOUS):
        without = {k: v for k, v in span.attributes.items() if k != names.ATTR_RANK}
        assert defects(with_span(trace, index, replace(span, attributes=without)))


@pytest.mark.parametrize(("trace", "index", "span"), [p for p in each_span() if p.values[2].name != "llm_request"])
def test_losing_the_boot_id_is_a_defect(trace, index, span):
    kept = {k: v for k, v in span.resource.attributes.items() if k != names.ATTR_BOOT_ID}
    found = defects(with_span(trace, index, replace(span, resource=Resource(kept))))
    assert [d.kind for d in found] == ["resource"]


def losing(trace: Trace, index: int, *lost: str) -> Trace:
    span = trace.spans[index]
    return with_span(trace, index, replace(span, attributes={**span.attributes, names.ATTR_INCOMPLETE: lost}))


@pytest.mark.parametrize(("trace", "index", "span"), each_span())
def test_what_a_process_says_it_lost_is_reported_with_the_spans_name(trace, index, span):
    name = "request" if span is trace.spans[0] else span.name
    lossy = losing(trace, index, names.LOST_POST, names.LOST_SIZE)
    assert defects(lossy) == [Defect("telemetry", f"{name}: {item}") for item in ("post", "size")]


@pytest.mark.parametrize("lost", [names.LOST_START, names.LOST_END])
@pytest.mark.parametrize(("trace", "index", "span"), each_span(("push-handshake", "pull")))
def test_a_half_known_span_is_a_defect_and_not_said_to_be_missing(trace, index, span, lost):
    legs = {s.span_id for s in trace.spans if s.name in (names.SPAN_LEG_PREFILL, names.SPAN_LEG_DECODE)}
    if span.parent_span_id in legs:  # what an engine tells in one piece
        found = defects(losing(trace, index, lost))
        assert Defect("telemetry", f"{span.name}: {lost}") in found
        assert Defect("span", span.name) not in found


def test_a_failed_request_needs_its_tree_and_its_error_type_only():
    trace = WHOLE["push"]
    root = replace(trace.spans[0], status_code=STATUS_ERROR, events=())
    bare = Trace(trace.trace_id, (root,))
    assert defects(bare) == [Defect("attribute", "request: error.type on a failed span")]
    typed = replace(root, attributes={**root.attributes, names.ATTR_ERROR_TYPE: "timeout"})
    assert defects(Trace(trace.trace_id, (typed,))) == []


def test_a_read_of_p_that_failed_needs_no_phases_but_its_error_type():
    trace = WHOLE["reuse"]
    reads = [s for s in trace.spans if s.name == names.SPAN_READ and s.resource.service_name == names.SERVICE_PREFILL]
    gone = {s.span_id for s in trace.spans if s.parent_span_id in {r.span_id for r in reads}}
    typed = {names.ATTR_ERROR_TYPE: "transfer_failed"}

    def failed(more: dict[str, str]) -> Trace:
        spans = (
            replace(s, status_code=STATUS_ERROR, attributes={**s.attributes, **more}) if s in reads else s
            for s in trace.spans
            if s.span_id not in gone
        )
        return Trace(trace.trace_id, tuple(spans))

    assert defects(failed(typed)) == []
    assert [d.kind for d in defects(failed({}))] == ["attribute"]


@pytest.mark.parametrize("name", [names.SPAN_READ, names.SPAN_BLOCKS_HELD])
def test_what_both_engines_do_in_reuse_belongs_under_the_own_leg(name):
    trace = WHOLE["reuse"]
    legs = {s.name: s.span_id for s in trace.spans}
    for index, span in enumerate(trace.spans):
        if span.name == name:
            own_prefill = span.resource.service_name == names.SERVICE_PREFILL
            other = legs[names.SPAN_LEG_DECODE if own_prefill else names.SPAN_LEG_PREFILL]
            assert any(
                d.kind == "parent" for d in defects(with_span(trace, index, replace(span, parent_span_id=other)))
            )


def test_an_outcome_of_the_lookup_must_be_a_known_one():
    trace = WHOLE["reuse-miss"]
    index = next(i for i, s in enumerate(trace.spans) if s.name == names.SPAN_REUSE_LOOKUP)
    for outcome in (None, "maybe"):
        span = trace.spans[index]
        odd = replace(span, attributes={**span.attributes, names.ATTR_REUSE_OUTCOME: outcome})
        assert [d.kind for d in defects(with_span(trace, index, odd))] == ["attribute"]


def test_times_do_not_matter():
    trace = WHOLE["push"]
    late = [s.shifted(10**12) if s.name == names.SPAN_WRITE else s for s in trace.spans]
    assert defects(Trace(trace.trace_id, tuple(late))) == []


def test_one_loss_in_many_ranks_is_one_defect_by_kind():
    trace = WHOLE["push"]
    unlinked = [replace(s, links=()) if s.name == names.SPAN_WRITE else s for s in trace.spans]
    found = defects(Trace(trace.trace_id, tuple(unlinked)))
    assert len(found) == len(set(found))
