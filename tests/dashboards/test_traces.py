"""The searches for traces: the store's grammar reads them, and they find what they are for and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from connector import names
from connector.stages import STAGE_NAMES
from dashboards.boards.traces import BOARD, STAGE
from dashboards.expressions import substitute
from dashboards.model import TraceQuery
from dashboards.queries import traces as ask
from stack.analysis.otlp_json import dumps
from stack.analysis.synthetic import MS, Builder, Figures, plain_trace, pull_trace, push_trace
from stack.analysis.trace import STATUS_ERROR, Attributes, Trace
from stack.store.errors import BadRequestError
from stack.store.settings import StoreSettings
from stack.store.testing import StoreClient, opened
from stack.store.traceql import parse

PUSH, PULL, REGISTRATION_LAST, FAILED, EXPIRED, PLAIN, EDITED, HIT, LONG, HALF = range(1, 11)
ALL = {PUSH, PULL, REGISTRATION_LAST, FAILED, EXPIRED, PLAIN, EDITED, HIT, LONG, HALF}
EVERYTHING = {"mode": ".+", "stage": STAGE.everything, "engine": ".+", "service": ".+", "host": ".+", "slower": "1ms"}


def changed(trace: Trace, name: str, attributes: Attributes | None = None, **fields: object) -> Trace:
    """Returns the trace with other attributes or fields on the spans that are called ``name``."""
    spans = (
        replace(span, attributes={**span.attributes, **(attributes or {})}, **fields) if span.name == name else span
        for span in trace.spans
    )
    return Trace(trace.trace_id, tuple(spans))


def looked_up(number: int, outcome: str) -> Trace:
    trace = pull_trace(number=number)
    builder = Builder(names.MODE_REUSE, number=number, spans=list(trace.spans))
    root = trace.spans[0].span_id
    outcome_of = {names.ATTR_REUSE_OUTCOME: outcome}
    builder.add(names.SERVICE_ROUTER, names.SPAN_REUSE_LOOKUP, 0, MS // 2, root, attributes=outcome_of)
    return builder.trace()


TRACES = (
    push_trace(number=PUSH),
    pull_trace(number=PULL),
    push_trace(Figures(decode_hop=900 * MS), number=REGISTRATION_LAST),
    changed(pull_trace(number=FAILED), names.SPAN_READ, status_code=STATUS_ERROR),
    changed(
        push_trace(number=EXPIRED),
        names.SPAN_BLOCKS_HELD,
        {names.ATTR_RELEASE_REASON: names.RELEASE_LEASE_EXPIRED},
    ),
    changed(plain_trace(number=PLAIN), names.SPAN_LEG_DECODE, {names.ATTR_FALLBACK: "several prompts"}),
    looked_up(EDITED, names.REUSE_EDITED),
    looked_up(HIT, names.REUSE_HIT),
    pull_trace(Figures(flight=700 * MS), number=LONG, boot_ids={names.SERVICE_DECODE: "b"}),
    changed(push_trace(number=HALF), names.SPAN_AWAIT, {names.ATTR_INCOMPLETE: (names.LOST_END,)}),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreClient]:
    settings = StoreSettings(path=tmp_path_factory.mktemp("store") / "traces.db")
    with opened(settings) as client:
        answer = client.post("/v1/traces", content=dumps(TRACES), headers={"Content-Type": "application/json"})
        assert answer.status_code == 200, answer.text
        yield client


def filled(query: str, **values: str) -> str:
    """Puts values in for Grafana's variables, as its Tempo data source does."""
    for name, value in (EVERYTHING | values).items():
        query = query.replace(f"${name}", value)
    assert "$" not in query
    return query


CASES: tuple[tuple[str, dict[str, str], set[int]], ...] = (
    (ask.REQUESTS, {"slower": "1s"}, ALL),
    (ask.REQUESTS, {"mode": "pull|plain"}, {PULL, FAILED, PLAIN, EDITED, HIT, LONG}),
    (ask.REQUESTS, {"slower": "100s"}, set()),
    (ask.STAGES, {"stage": "(kvpath.write|kvpath.read).flight", "slower": "500ms"}, {LONG}),
    (ask.STAGES, {}, ALL),
    (ask.ERRORS, {}, {FAILED}),
    (ask.REGISTRATION_LAST, {"slower": "50ms"}, {REGISTRATION_LAST}),
    (ask.LEASES_EXPIRED, {}, {EXPIRED}),
    (ask.HALF_KNOWN, {}, {HALF}),
    (ask.HALF_KNOWN, {"mode": "pull"}, set()),
    (ask.FALLBACKS, {}, {PLAIN}),
    (ask.NOT_REUSED, {}, {EDITED}),
    (ask.ON_HOST, {"host": "host-b"}, {LONG}),
    (ask.ON_HOST, {"service": names.SERVICE_PREFILL}, ALL - {PLAIN}),
    (ask.ON_ENGINE, {"engine": "vllm-decode-0", "stage": names.SPAN_FIRST_STEP}, ALL - {PLAIN}),
    (ask.ON_ENGINE, {"engine": "vllm-prefill-0", "stage": names.SPAN_FIRST_STEP}, set()),
)


@pytest.mark.parametrize(("query", "values", "found"), CASES)
def test_a_search_finds_what_it_is_for(store: StoreClient, query: str, values: dict[str, str], found: set[int]) -> None:
    assert store.found(filled(query, **values)) == found


def test_every_search_of_the_dashboard_was_tried_above_or_needs_tempo() -> None:
    shown = {query.traceql for panel in BOARD.panels() for query in panel.queries if isinstance(query, TraceQuery)}
    tried = {query for query, _, _ in CASES}
    assert shown == tried | set(ask.NEED_TEMPO)


def test_what_needs_tempo_is_beyond_the_store_and_says_so() -> None:
    for query in ask.NEED_TEMPO:
        with pytest.raises(BadRequestError, match="TraceQL"):
            parse(filled(query))


def test_every_choice_of_a_stage_names_spans_that_there_are(store: StoreClient) -> None:
    choices = dict(choice.split(" : ") for choice in STAGE.values)
    assert set(choices) <= {*STAGE_NAMES, "rendezvous"}
    for stage, spans in choices.items():
        rows = store.found(filled(ask.STAGES, stage=spans, slower="0ms"))
        assert bool(rows) == (stage != "handshake"), stage  # no trace above connects


def test_the_dashboards_own_samples_fit_its_searches() -> None:
    for panel in BOARD.panels():
        for query in panel.queries:
            assert isinstance(query, TraceQuery)
            if query.traceql not in ask.NEED_TEMPO:
                parse(substitute(query.traceql, BOARD))
