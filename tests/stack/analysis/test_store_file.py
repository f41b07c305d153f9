"""A store's own file is as good as OTLP JSON, and stays as it was."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from stack.analysis import otlp_json, report_command, trace_command
from stack.analysis.store_file import is_store_file, read_store
from stack.analysis.synthetic import pull_trace, push_trace
from stack.analysis.trace_input import InputError, load_trace, load_traces
from stack.store.settings import StoreSettings
from stack.store.testing import opened

JSON = {"Content-Type": "application/json"}
TRACES = [push_trace(number=1), pull_trace(number=2), push_trace(number=3)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that a store has left behind."""
    path = tmp_path_factory.mktemp("store") / "traces.sqlite"
    with opened(StoreSettings(path=path)) as client:
        assert client.post("/v1/traces", content=otlp_json.dumps(TRACES), headers=JSON).status_code == 200
    return path


def spans(traces) -> dict[str, set[str]]:
    return {trace.trace_id: set(map(repr, trace.spans)) for trace in traces}


def test_it_holds_what_was_sent(store):
    assert is_store_file(store)
    assert spans(load_traces(None, store, None, None)) == spans(TRACES)
    assert len(read_store(store, 2)) == len(load_traces(None, store, None, 2)) == 2


@pytest.mark.parametrize("wanted", ["req-2", f"{2:032x}", f"{2:032X}"])
def test_one_trace_by_either_id(store, wanted):
    assert load_trace(wanted, None, store).trace_id == f"{2:032x}"


@pytest.mark.parametrize("wanted", ["req-9", f"{9:032x}"])
def test_one_that_it_does_not_have_is_said(store, wanted):
    with pytest.raises(InputError, match=f"no trace and no request '{wanted}' in .*traces.sqlite"):
        load_trace(wanted, None, store)


def test_reading_leaves_nothing_behind(store):
    before = store.read_bytes()
    load_traces(None, store, None, None)
    assert [path.name for path in store.parent.iterdir()] == ["traces.sqlite"]
    assert store.read_bytes() == before


def test_a_store_that_runs_may_be_read_meanwhile(tmp_path):
    path = tmp_path / "traces.sqlite"
    with opened(StoreSettings(path=path)) as client:
        for trace in TRACES[:2]:
            client.post("/v1/traces", content=otlp_json.dumps([trace]), headers=JSON)
            assert trace.trace_id in spans(load_traces(None, path, None, None))


def test_the_commands_take_it(store, capsys):
    for command, arguments in ((report_command, []), (trace_command, [f"{1:032x}"])):
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        assert command.run(parser.parse_args([*arguments, "--traces", str(store)])) == 0
        assert "prefill" in capsys.readouterr().out


def test_another_database_is_refused_in_a_line(tmp_path):
    path = tmp_path / "other.sqlite"
    path.write_bytes(b"SQLite format 3\0" + bytes(2000))
    with pytest.raises(InputError, match=r"trace store .*other\.sqlite: .*; "):
        load_traces(None, path, None, None)
