"""The store's own traces give the analysis exactly what OTLP JSON gives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack.analysis import otlp_json
from stack.store.errors import StorageError
from stack.store.settings import StoreSettings
from stack.store.testing import SpanSpec, StoreClient, opened
from stack.view.store_feed import StoreFeed

JSON = {"Content-Type": "application/json"}
GOLDEN = sorted(p for p in (Path(__file__).parents[2] / "golden").glob("*.json") if p.name != "expected.json")


@pytest.fixture
def store(tmp_path):
    settings = StoreSettings(path=tmp_path / "traces.db")
    with opened(settings) as client:
        yield client, settings.path


def send(client: StoreClient, *traces) -> None:
    assert client.post("/v1/traces", content=otlp_json.dumps(traces), headers=JSON).status_code == 200


@pytest.mark.parametrize("file", GOLDEN, ids=lambda p: p.stem)
def test_a_stored_trace_is_the_same_value_for_value(file, store):
    client, path = store
    (trace,) = otlp_json.read_file(file)
    send(client, trace)
    loaded = StoreFeed(path).load(trace.trace_id)
    assert loaded is not None
    assert set(map(repr, loaded.spans)) == set(map(repr, trace.spans))


def test_every_kind_of_attribute_value_survives(store):
    client, path = store
    client.export(SpanSpec(1, attributes={"s": "x", "b": True, "i": 3, "f": 0.5, "l": ["a", 1, False]}))
    loaded = StoreFeed(path).load(f"{1:032x}")
    assert loaded is not None
    assert loaded.spans[0].attributes == {"s": "x", "b": True, "i": 3, "f": 0.5, "l": ("a", 1, False)}


def test_the_newest_come_first_and_only_the_routers(store):
    client, path = store
    client.export(SpanSpec(1, start_ms=5), SpanSpec(2, start_ms=9), SpanSpec(3, start_ms=7, service="somebody"))
    assert [trace_id for trace_id, _ in StoreFeed(path).newest()] == [f"{2:032x}", f"{1:032x}"]
    assert [trace_id for trace_id, _ in StoreFeed(path, limit=1).newest()] == [f"{2:032x}"]


def test_spans_that_arrive_later_change_the_version(store):
    client, path = store
    client.export(SpanSpec(1))
    before = StoreFeed(path).newest()
    client.export(SpanSpec(1, name="late"))
    assert StoreFeed(path).newest() != before


def test_a_file_that_is_no_database_is_a_storage_error(tmp_path):
    (tmp_path / "t.db").write_text("no database" * 100)
    with pytest.raises(StorageError):
        StoreFeed(tmp_path / "t.db").newest()


def test_an_id_that_is_not_there(store):
    _, path = store
    assert StoreFeed(path).load("0" * 32) is None
