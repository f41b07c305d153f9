"""Feeds of a file and of a remote store: what they list, and when a trace is read again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from stack.analysis import otlp_json
from stack.analysis.source import SourceError
from stack.analysis.synthetic import push_trace
from stack.store.settings import StoreSettings
from stack.store.testing import opened
from stack.view.feed import SETTLED_S, FileFeed, RemoteFeed


def test_a_file_lists_its_traces_in_order():
    traces = [push_trace(number=2), push_trace(number=1)]
    feed = FileFeed(Path("somewhere/traces.json"), traces)
    assert [trace_id for trace_id, _ in feed.newest()] == [t.trace_id for t in traces]
    assert feed.load(traces[1].trace_id) is traces[1]
    assert feed.load("0" * 32) is None
    assert "traces.json" in feed.name
    assert "somewhere" not in feed.name


def test_a_remote_trace_is_read_again_until_it_has_settled(tmp_path):
    now = [100.0]
    trace = push_trace(number=5)
    with opened(StoreSettings(path=tmp_path / "t.db")) as client:
        client.post("/v1/traces", content=otlp_json.dumps([trace]), headers={"Content-Type": "application/json"})
        feed = RemoteFeed(str(client.base_url), since_s=10**9, monotonic=lambda: now[0])
        ((trace_id, young),) = feed.newest()
        assert trace_id == trace.trace_id
        now[0] += 1
        ((_, later),) = feed.newest()
        assert later != young
        now[0] += SETTLED_S
        settled = feed.newest()
        now[0] += 1
        assert feed.newest() == settled
        loaded = feed.load(trace_id)
        assert loaded is not None
        assert {s.span_id for s in loaded.spans} == {s.span_id for s in trace.spans}
        feed.close()


def test_an_unreachable_store_is_one_error(tmp_path):
    with opened(StoreSettings(path=tmp_path / "t.db")) as client:
        url = str(client.base_url)
    with closing(RemoteFeed(url)) as feed, pytest.raises(SourceError, match="cannot reach"):
        feed.newest()
