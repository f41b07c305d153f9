"""The whole exporter over HTTP, read as Prometheus reads it; a trace store that goes away and comes back."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from connector import names
from connector.stages import STAGE_NAMES, UNEXPLAINED
from stack.analysis.critical_path import critical_path
from stack.analysis.otlp_json import dumps, read_file
from stack.analysis.trace import Trace
from stack.exporter.app import create_app
from stack.exporter.settings import ExporterSettings
from stack.store.app import create_app as create_store
from stack.store.settings import StoreSettings
from stack.store.testing import StoreClient, opened, served

OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}
GOLDEN = Path(__file__).parents[2] / "golden"
FULL = ("push_prefill_last", "push_registration_last", "push_two_ranks_handshake", "pull_handshake", "pull_cross_host")


def golden(name: str) -> Trace:
    (trace,) = read_file(GOLDEN / f"{name}.json")
    return trace


def now_at(trace: Trace) -> Callable[[], float]:
    """A clock at a few seconds after the golden traces, whose times are all within a day."""
    return lambda: max(s.end_ns for s in trace.spans) / 1e9 + 1


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_golden_traces_become_histograms_with_exemplars(tmp_path):
    traces = [golden(name) for name in FULL]
    newest = max(traces, key=lambda t: max(s.end_ns for s in t.spans))
    settings = {"state": tmp_path / "state.db", "since_s": 7 * 86400, "poll_s": 0.01}
    with opened(StoreSettings(path=tmp_path / "traces.db")) as store:
        store.post("/v1/traces", content=dumps(traces), headers={"Content-Type": "application/json"})
        app = create_app(ExporterSettings(tempo_url=str(store.base_url), **settings), now_at(newest))
        with served(app) as url, httpx.Client(base_url=url) as client:
            counted = f"{names.METRIC_EXPORTER_TTFT}_count"
            until(lambda: _sum(client, counted) == len(traces), "all golden traces are counted")
            assert client.get("/health").json() == {"status": "counting"}
            text = client.get("/metrics", headers=OPENMETRICS).text
            plain = client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    assert "trace_id" not in plain.text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    _check_stages(families, traces)
    _check_exemplars(families, traces)


def _sum(client: httpx.Client, name: str) -> float:
    text = client.get("/metrics", headers=OPENMETRICS).text
    return sum(s.value for f in text_string_to_metric_families(text) for s in f.samples if s.name == name)


def _check_stages(families, traces: list[Trace]) -> None:
    """Sums of stages are those of the critical paths, and add up to TTFT in every mode."""
    paths = [critical_path(trace) for trace in traces]
    sums = {
        (s.labels["mode"], s.labels["stage"]): s.value
        for s in families[names.METRIC_EXPORTER_CRITICAL_PATH].samples
        if s.name.endswith("_sum")
    }
    ttft = {s.labels["mode"]: s.value for s in families[names.METRIC_EXPORTER_TTFT].samples if s.name.endswith("_sum")}
    for mode in ("push", "pull"):
        mine = [p for p in paths if p.mode == mode]
        assert mine
        for stage in STAGE_NAMES:
            assert sums[mode, stage] == pytest.approx(sum(p.stages[stage] for p in mine) / 1e9)
        assert sums[mode, UNEXPLAINED] == pytest.approx(sum(p.unexplained_ns for p in mine) / 1e9)
        assert sum(sums[mode, stage] for stage in (*STAGE_NAMES, UNEXPLAINED)) == pytest.approx(ttft[mode])


def _check_exemplars(families, traces: list[Trace]) -> None:
    """Every exemplar is the trace id of a trace whose value lies in its bucket."""
    paths = {t.trace_id: critical_path(t) for t in traces}
    found = set()
    for sample in families[names.METRIC_EXPORTER_CRITICAL_PATH].samples:
        if sample.exemplar is None:
            continue
        path = paths[sample.exemplar.labels["trace_id"]]
        stage = sample.labels["stage"]
        ns = path.unexplained_ns if stage == UNEXPLAINED else path.stages[stage]
        assert sample.exemplar.value == pytest.approx(ns / 1e9)
        assert 0 < sample.exemplar.value <= float(sample.labels["le"])
        found.add(path.trace_id)
    for sample in families[names.METRIC_EXPORTER_TTFT].samples:
        if sample.exemplar is not None:
            found.add(sample.exemplar.labels["trace_id"])
    assert found == set(paths)


def test_a_store_that_goes_away_and_comes_back(tmp_path, caplog):
    trace = golden("push_prefill_last")
    with socket.socket() as reserved:  # bound and not listening: the port is kept, connections are refused
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        settings = ExporterSettings(
            tempo_url=f"http://127.0.0.1:{port}", state=tmp_path / "s.db", since_s=86400, poll_s=0.01
        )
        app = create_app(settings, now_at(trace))
        with (
            caplog.at_level(logging.WARNING, "stack.exporter"),
            served(app) as url,
            httpx.Client(base_url=url) as client,
        ):
            errors = f"{names.METRIC_EXPORTER_POLL_ERRORS}_total"
            until(lambda: _sum(client, errors) >= 3, "polls fail")
            health = client.get("/health")
            assert health.status_code == 503
            assert "cannot reach the trace store" in health.json()["error"]["message"]
            assert [r.levelname for r in caplog.records] == ["ERROR"]  # said once, not with every poll
            assert caplog.records[0].exc_info is None
            reserved.close()
            with _store_at(port, tmp_path) as store:
                store.post("/v1/traces", content=dumps([trace]), headers={"Content-Type": "application/json"})
                counted = f"{names.METRIC_EXPORTER_TTFT}_count"
                until(lambda: _sum(client, counted) == 1, "the trace is counted")
                assert client.get("/health").status_code == 200


@contextmanager
def _store_at(port: int, folder: Path) -> Iterator[StoreClient]:
    app = create_store(StoreSettings(path=folder / "traces.db"))
    with served(app, port) as url, StoreClient(base_url=url) as client:
        yield client
