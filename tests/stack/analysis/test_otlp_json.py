"""OTLP JSON: exact round trips, and every shape that stores and collectors really send."""

from __future__ import annotations

import base64
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.analysis.otlp_json import OtlpJsonError, document, dumps, parse, read_file, write_file
from stack.analysis.synthetic import pull_trace, push_trace
from stack.analysis.trace import Event, Link, Resource, Scope, Span, Trace

text = st.text(max_size=12)
scalars = text | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.binary(max_size=8)
values = st.recursive(
    scalars | st.none(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
attributes = st.dictionaries(text, values, max_size=4)
instants = st.integers(0, 2**63 - 1)
span_ids = st.integers(1, 2**64 - 1).map(lambda n: f"{n:016x}")
TRACE_ID = "5b8efff798038103d269b633813fc60c"


@st.composite
def spans(draw) -> Span:
    return Span(
        trace_id=TRACE_ID,
        span_id=draw(span_ids),
        parent_span_id=draw(st.just("") | span_ids),
        name=draw(text),
        start_ns=draw(instants),
        end_ns=draw(instants),
        kind=draw(st.integers(0, 5)),
        attributes=draw(attributes),
        events=tuple(draw(st.lists(st.builds(Event, text, instants, attributes), max_size=2))),
        links=tuple(draw(st.lists(st.builds(Link, st.just(TRACE_ID), span_ids, attributes, text), max_size=2))),
        status_code=draw(st.integers(0, 2)),
        status_message=draw(text),
        resource=draw(st.builds(Resource, attributes)),
        scope=draw(st.builds(Scope, text, text)),
        trace_state=draw(text),
        flags=draw(st.integers(0, 2**32 - 1)),
    )


@given(st.lists(spans(), min_size=1, max_size=4, unique_by=lambda s: s.span_id))
@settings(max_examples=80, deadline=None)
def test_the_round_trip_is_exact(members):
    trace = Trace(TRACE_ID, tuple(members))
    again = parse(dumps([trace]))
    assert again == [trace]
    for span, copy in zip(trace.spans, again[0].spans, strict=True):
        for key, value in span.attributes.items():
            assert type(copy.attributes[key]) is type(value)
    assert dumps(again) == dumps([trace])


def test_numbers_that_are_none_survive():
    span = push_trace().spans[0]
    trace = Trace(
        span.trace_id, (Span(span.trace_id, span.span_id, "", "x", 1, 2, attributes={"r": math.inf, "n": math.nan}),)
    )
    found = parse(dumps([trace]))[0].spans[0].attributes
    assert found["r"] == math.inf
    assert math.isnan(found["n"])


def tempo_shape(trace: Trace) -> dict:
    """What Tempo answers: base64 ids, enum names, ``batches``."""
    kinds = ["UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
    found = document([trace])

    def base64ed(holder: dict) -> None:
        for key in ("traceId", "spanId", "parentSpanId"):
            if key in holder:
                holder[key] = base64.b64encode(bytes.fromhex(holder[key])).decode()

    for block in found["resourceSpans"]:
        for scoped in block["scopeSpans"]:
            for span in scoped["spans"]:
                base64ed(span)
                span["kind"] = f"SPAN_KIND_{kinds[span['kind']]}"
                if span["status"].get("code") == 2:
                    span["status"]["code"] = "STATUS_CODE_ERROR"
                for link in span.get("links", ()):
                    base64ed(link)
    return {"batches": found["resourceSpans"]}


def test_every_shape_gives_the_same_trace(golden):
    for trace in (golden("push_two_ranks_handshake"), golden("push_error")):
        tempo = tempo_shape(trace)
        older = json.loads(
            json.dumps(tempo)
            .replace('"scopeSpans"', '"instrumentationLibrarySpans"')
            .replace('"scope"', '"instrumentationLibrary"')
        )
        shapes = [tempo, older, {"trace": {"resourceSpans": tempo["batches"]}}, document([trace])]
        assert [parse(json.dumps(shape)) for shape in shapes] == [[trace]] * 4


def test_integers_may_be_numbers_or_strings_and_ids_upper_case():
    raw = document([pull_trace()])
    loose = json.loads(json.dumps(raw), parse_int=int)
    for block in loose["resourceSpans"]:
        for span in block["scopeSpans"][0]["spans"]:
            span["startTimeUnixNano"] = int(span["startTimeUnixNano"])
            span["traceId"] = span["traceId"].upper()
            for item in span["attributes"]:
                if "intValue" in item["value"]:
                    item["value"]["intValue"] = int(item["value"]["intValue"])
    assert parse(json.dumps(loose)) == [pull_trace()]


def test_one_document_a_line_as_the_collector_writes_files(tmp_path):
    traces = [push_trace(number=1), pull_trace(number=2)]
    file = tmp_path / "spans.jsonl"
    file.write_text("\n".join(dumps([t]) for t in traces) + "\n\n")
    assert read_file(file) == traces


def test_a_trace_in_pieces_is_one_and_a_span_delivered_twice_counts_once():
    trace = push_trace()
    halves = [Trace(trace.trace_id, trace.spans[:6]), Trace(trace.trace_id, trace.spans[4:])]
    assert parse("\n".join(dumps([h]) for h in halves)) == [trace]


def test_a_file_is_replaced_whole(tmp_path):
    file = tmp_path / "traces.json"
    write_file(file, [push_trace()])
    write_file(file, [pull_trace()])
    assert read_file(file) == [pull_trace()]
    assert [p.name for p in tmp_path.iterdir()] == ["traces.json"]


def test_no_traces_are_no_traces():
    assert parse(dumps([])) == []
    assert parse('{"trace": {}}') == []
    assert parse('{"batches": null}') == []


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"resourceSpans": []}\n{', "line 2 is not JSON"),
        ("[]", 'no "resourceSpans"'),
        ('{"data": []}', 'no "resourceSpans"'),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]}', "KeyError"),
        (
            '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz", "spanId": "1"}]}]}]}',
            "traceId 'xyz' is neither",
        ),
        ('{"resourceSpans": 7}', "malformed"),
    ],
)
def test_what_is_not_otlp_is_said_in_one_line(broken, says):
    with pytest.raises(OtlpJsonError, match=says) as caught:
        parse(broken)
    assert "\n" not in str(caught.value)
