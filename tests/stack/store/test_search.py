"""Searches through HTTP, and the index against plain evaluation of everything."""

from __future__ import annotations

import random

import pytest

from connector import names
from stack.store.evaluate import compile_filter
from stack.store.plan import Plan
from stack.store.reader import PAGE, RARE, Window, candidates, decode, reading, views
from stack.store.search import SearchRequest, search
from stack.store.settings import StoreSettings
from stack.store.testing import T0, SpanSpec, StoreClient
from stack.store.traceql import parse

SECOND = T0 // 10**9


@pytest.fixture(scope="module")
def stored(shared: StoreClient) -> StoreClient:
    """Three traces: 1 push, ok; 2 pull, with an error in a child; 3 without a root, other types."""
    child = b"\x01" * 8
    push = {names.ATTR_MODE: names.MODE_PUSH, names.ATTR_REQUEST_ID: "r1", "n": 5, "rate": 4.5, "on": True}
    pull = {names.ATTR_MODE: names.MODE_PULL, names.ATTR_REQUEST_ID: "r2", "n": 7}
    shared.export(
        SpanSpec(1, "chat m", attributes=push, kind=2),
        SpanSpec(1, names.SPAN_WRITE, "vllm-prefill", 2, 5, child, {"n": "five"}),
        SpanSpec(2, "chat m", start_ms=10_000, duration_ms=3000, attributes=pull, kind=2),
        SpanSpec(2, names.SPAN_READ, "vllm-decode", 10_002, 900, child, {"tags": ["x", "y"]}, status=2),
        SpanSpec(3, names.SPAN_AWAIT, "vllm-decode", 20_000, 1, child, {"service.name": "own", "n": 7.0}, status=1),
    )
    return shared


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("{}", {1, 2, 3}),
        ('{ .kvpath.mode = "push" }', {1}),
        ('{ .kvpath.mode =~ "pu.*" }', {1, 2}),
        ('{ .kvpath.mode =~ "us" }', set()),
        ('{ .kvpath.mode !~ "pus." }', {2}),
        ('{ .kvpath.mode != "push" }', {2}),
        ('{ .kvpath.mode = nil && name = "chat m" }', set()),
        ("{ .kvpath.mode != nil }", {1, 2}),
        ('{ span.kvpath.request_id = "r2" }', {2}),
        ('{ resource.kvpath.request_id = "r2" }', set()),
        ('{ .kvpath.mode = "push" && .kvpath.request_id = "r2" }', set()),
        ('{ .kvpath.mode = "push" || .kvpath.request_id = "r2" }', {1, 2}),
        ('{ .kvpath.mode = "push" && name = "kvpath.write" }', set()),  # in one trace, but not on one span
        ("{ .n = 5 }", {1}),
        ("{ .n = 7 }", {2, 3}),
        ('{ .n = "five" }', {1}),
        ("{ .n != 5 }", {2, 3}),
        ("{ .n > 5.5 }", {2, 3}),
        ("{ .rate = 4.5 }", {1}),
        ("{ .on = true }", {1}),
        ("{ .on = 1 }", set()),
        ("{ status = error }", {2}),
        ("{ status = unset }", {1, 2}),
        ("{ status = ok || kind = server }", {1, 2, 3}),
        ("{ duration > 1s }", {2}),
        ("{ duration < 6ms }", {1, 3}),
        ("{ trace:duration >= 3s }", {2}),
        ('{ rootName = "chat m" }', {1, 2}),
        ('{ rootServiceName = "kvpath-router" && name = "kvpath.read" }', {2}),
        ('{ resource.service.name = "vllm-decode" }', {2, 3}),
        ('{ .service.name = "vllm-decode" }', {2}),  # trace 3's span has its own
        ('{ .service.name = "own" }', {3}),
        ('{ .tags = "y" }', {2}),
        ('{ .tags != "y" }', set()),
        (f'{{ trace:id = "{3:032x}" }}', {3}),
    ],
)
def test_queries(stored: StoreClient, query: str, expected: set[int]) -> None:
    assert stored.found(query) == expected


def test_answer_has_tempos_shape_newest_first(stored: StoreClient) -> None:
    answer = stored.get("/api/search", params={"q": "{ .n > 1 && status != error }", "limit": 2}).json()
    assert [trace["traceID"] for trace in answer["traces"]] == ["3", "2"]
    assert answer["traces"][0]["rootTraceName"] == "<root span not yet received>"
    second = answer["traces"][1]
    for shown in (second["spanSet"], *second["spanSets"]):
        assert shown["spans"][0].pop("spanID")
    assert second == {
        "traceID": "2",
        "rootServiceName": "kvpath-router",
        "rootTraceName": "chat m",
        "startTimeUnixNano": str(T0 + 10_000 * 10**6),
        "durationMs": 3000,
        "serviceStats": {
            "kvpath-router": {"spanCount": 1, "errorCount": 0},
            "vllm-decode": {"spanCount": 1, "errorCount": 1},
        },
        "spanSet": second["spanSets"][0],
        "spanSets": [
            {
                "matched": 1,
                "spans": [
                    {
                        "name": "chat m",
                        "startTimeUnixNano": str(T0 + 10_000 * 10**6),
                        "durationNanos": str(3000 * 10**6),
                        "attributes": [
                            {"key": "n", "value": {"intValue": "7"}},
                            {"key": "status", "value": {"stringValue": "unset"}},
                        ],
                    }
                ],
            }
        ],
    }
    assert answer["metrics"]["inspectedTraces"] > 0


def test_spans_per_set(client: StoreClient) -> None:
    client.export(*[SpanSpec(9, f"s{i}", start_ms=30_000 + i) for i in range(5)])
    for spss, shown in ((None, 3), (2, 2), (0, 5)):
        parameters = {} if spss is None else {"spss": spss}
        span_set = client.search("{ name =~ `s.` }", **parameters)[0]["spanSets"][0]
        assert (len(span_set["spans"]), span_set["matched"]) == (shown, 5)


def test_tags_durations_and_window(stored: StoreClient) -> None:
    def found(**parameters: object) -> list[int]:
        answer = stored.get("/api/search", params=parameters)
        assert answer.status_code == 200, answer.text
        return [int(trace["traceID"], 16) for trace in answer.json()["traces"]]

    assert found() == [3, 2, 1]
    assert found(tags='service.name=DECODE kvpath.mode="pul"') == [2]
    assert found(tags="name=kvpath.WRITE") == [1]
    assert found(tags="status=error") == [2]
    assert found(tags="n=7") == [3, 2]
    assert found(minDuration="1s") == [2]
    assert found(maxDuration="10ms") == [3, 1]
    assert found(start=SECOND + 5, end=SECOND + 15) == [2]
    assert found(start=SECOND + 12, end=SECOND + 13) == [2]  # it began earlier and overlaps
    assert found(end=SECOND + 5) == [1]
    assert found(limit=1) == [3]


@pytest.mark.parametrize(
    "parameters",
    [
        {"q": "{ .a = 1 } | count() > 1"},
        {"q": "{}", "tags": "a=b"},
        {"limit": "0"},
        {"limit": "x"},
        {"limit": "-1"},
        {"spss": "1.5"},
        {"start": "9" * 30},
        {"start": "10", "end": "5"},
        {"minDuration": "5"},
        {"tags": "a"},
        {"query": "{}"},
    ],
)
def test_bad_parameters_are_400(shared: StoreClient, parameters: dict[str, str]) -> None:
    answer = shared.get("/api/search", params=parameters)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_a_search_without_time_left_is_an_error_not_a_part(client: StoreClient, settings: StoreSettings) -> None:
    client.export(SpanSpec(1), SpanSpec(2))
    ticks = iter((0.0, 100.0))
    with pytest.raises(Exception, match="took longer"):
        search(settings.path, SearchRequest(limit=2), 30, lambda: next(ticks))


def test_the_index_agrees_with_evaluating_everything(client: StoreClient, settings: StoreSettings) -> None:
    """More traces than one page, several equal starts, rare and frequent values; the oracle decodes them all."""
    chance = random.Random(7)
    modes = [names.MODE_PUSH, names.MODE_PULL, names.MODE_PLAIN]
    specs = [
        SpanSpec(
            trace + 1,
            chance.choice(["a", "b", "c" * 300]),
            chance.choice(["s", "t"]),
            chance.randrange(50),
            chance.randrange(100),
            attributes={names.ATTR_MODE: chance.choice(modes), names.ATTR_REQUEST_ID: f"r{trace}", "n": trace % 5},
            status=chance.choice([0, 0, 1, 2]),
        )
        for trace in range(3 * PAGE)
        for _ in range(2)
    ]
    client.export(*specs)
    with reading(settings.path) as connection:
        everything = list(candidates(connection, Plan(), Window()))
    assert len(everything) == 3 * PAGE
    for query in (
        '{ name = "a" && .kvpath.mode = "push" }',
        f'{{ name = "{"c" * 300}" && status = error }}',
        f'{{ name = "{"c" * 250}" }}',
        '{ (name = "b" || .kvpath.request_id = "r77") && resource.service.name = "s" }',
        '{ .kvpath.request_id = "r77" || .n = 3 && status = ok }',
        '{ .n = 3 && .kvpath.mode != "push" && duration < 50ms }',
        '{ trace:duration > 60ms && .kvpath.mode = "plain" }',
    ):
        matches = compile_filter(parse(query))
        expected = [
            candidate.summary
            for candidate in everything
            if any(matches(view) for view in views(decode(candidate.data), candidate.summary))
        ]
        assert client.found(query) == {int.from_bytes(summary.trace_id, "big") for summary in expected}
        starts = [int(trace["startTimeUnixNano"]) for trace in client.search(query, limit=1000)]
        assert starts == sorted(starts, reverse=True)
    assert RARE > 3 * PAGE  # the plan above drove from the index; below it may not


def test_frequent_values_are_found_by_time(client: StoreClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stack.store.reader.RARE", 3)
    client.export(*[SpanSpec(trace, start_ms=trace, attributes={names.ATTR_MODE: "push"}) for trace in range(1, 200)])
    assert client.found('{ .kvpath.mode = "push" }') == set(range(1, 200))
    assert client.found('{ .kvpath.mode = "pull" }') == set()
    newest = client.search('{ .kvpath.mode = "push" }', limit=2)
    assert [int(trace["traceID"], 16) for trace in newest] == [199, 198]
