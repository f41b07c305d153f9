"""The writer: bounded size, retention, storage failures, and a shutdown that loses nothing accepted."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from stack.store import database, reader
from stack.store.app import create_app
from stack.store.errors import OverloadedError, StorageError
from stack.store.metrics import StoreMetrics
from stack.store.otlp import Batch, split
from stack.store.settings import StoreSettings
from stack.store.testing import SpanSpec, StoreClient, opened, request_of, served
from stack.store.writer import Writer

MIB = 1024 * 1024
DAY_NS = 86_400 * 10**9


def batch_of(*specs: SpanSpec) -> Batch:
    request = request_of(*specs)
    return split(request, request.ByteSize())


def bulky(trace: int) -> SpanSpec:
    """A span of 100 kB that does not compress."""
    return SpanSpec(trace, start_ms=trace, attributes={"payload": os.urandom(50_000).hex()})


def test_the_files_stay_within_max_bytes_and_the_newest_traces_stay(tmp_path: Path) -> None:
    settings = StoreSettings(path=tmp_path / "t.db", max_bytes=4 * MIB, max_body_bytes=MIB)
    with opened(settings) as client:
        largest = 0
        for trace in range(1, 121):
            assert client.export(bulky(trace)).status_code == 200
            largest = max(largest, database.file_bytes(settings.path))
        kept = client.found("{}")
        assert largest <= settings.max_bytes
        assert largest > settings.max_bytes / 2  # the bound was reached, not avoided
        assert kept == set(range(min(kept), 121))
        assert 10 < len(kept) < 120
        assert client.metric("kvpath_store_traces_evicted_total", '{reason="size"}') == 120 - len(kept)
        assert client.get(f"/api/traces/{1:032x}").status_code == 404
    with reader.reading(settings.path) as connection:
        for table, column in (("chunk", "trace"), ("posting", "trace")):
            orphans = connection.execute(f"SELECT count(*) FROM {table} WHERE {column} NOT IN (SELECT id FROM trace)")
            assert orphans.fetchone()[0] == 0
    assert sqlite3.connect(settings.path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_lower_bound_at_restart_shrinks_the_file(tmp_path: Path) -> None:
    settings = StoreSettings(path=tmp_path / "t.db", max_bytes=16 * MIB, max_body_bytes=MIB)
    with opened(settings) as client:
        for trace in range(1, 150):
            client.export(bulky(trace))
    assert settings.path.stat().st_size > 5 * MIB
    with opened(settings.model_copy(update={"max_bytes": 4 * MIB})) as client:
        client.export(SpanSpec(500))
        assert database.file_bytes(settings.path) <= 4 * MIB
        assert 149 in client.found("{}")


def test_retention_evicts_by_arrival(settings: StoreSettings) -> None:
    now = [10 * DAY_NS]
    with served(create_app(settings, lambda: now[0])) as url, StoreClient(base_url=url) as client:
        client.export(SpanSpec(1), SpanSpec(2))
        now[0] += 4 * DAY_NS
        client.export(SpanSpec(3))
        assert client.found("{}") == {1, 2, 3}
        now[0] += 4 * DAY_NS
        client.export(SpanSpec(4))
        assert client.found("{}") == {3, 4}
        assert client.metric("kvpath_store_traces_evicted_total", '{reason="age"}') == 2


def test_stop_commits_what_was_accepted(settings: StoreSettings) -> None:
    writer = Writer(settings, StoreMetrics())
    accepted = [writer.submit(batch_of(SpanSpec(trace))) for trace in range(1, 101)]
    assert writer.stop()
    assert not settings.path.with_name(settings.path.name + "-wal").exists()  # all of it is in the file
    assert [done.result(timeout=0) for done in accepted] == [None] * 100
    assert all(reader.load(settings.path, trace.to_bytes(16, "big")) for trace in range(1, 101))
    with pytest.raises(OverloadedError):
        writer.submit(batch_of(SpanSpec(1)))
    assert "stopped" in str(writer.failure)


def test_the_queue_is_bounded_and_takes_one_request_of_any_size(tmp_path: Path) -> None:
    writer = Writer(StoreSettings(path=tmp_path / "t.db", queue_bytes=1024), StoreMetrics())
    writer.reserve(5000)
    with pytest.raises(OverloadedError, match="queue is full"):
        writer.reserve(1)
    writer.release(5000)
    writer.reserve(1000)
    assert writer.pending_bytes == 1000
    assert writer.stop()


def test_one_bad_batch_does_not_take_its_neighbours_with_it(settings: StoreSettings) -> None:
    metrics = StoreMetrics()
    writer = Writer(settings, metrics)
    bad = batch_of(SpanSpec(2))
    next(iter(bad.parts.values())).start_ns = 2**64  # SQLite cannot hold it
    futures = [writer.submit(batch) for batch in (batch_of(SpanSpec(1)), bad, batch_of(SpanSpec(3)))]
    assert futures[0].result(5) is None
    assert isinstance(futures[1].exception(5), StorageError)
    assert futures[2].result(5) is None
    assert writer.stop()
    assert metrics.registry.get_sample_value("kvpath_store_spans_dropped_total") == 1
    assert metrics.registry.get_sample_value("kvpath_store_spans_stored_total") == 2


@pytest.mark.parametrize("content", [b"this is not a database" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_one_clear_error(settings: StoreSettings, content: bytes) -> None:
    settings.path.write_bytes(content)
    with pytest.raises(StorageError, match="move it away"):
        create_app(settings)


def test_another_schema_is_refused(settings: StoreSettings) -> None:
    with sqlite3.connect(settings.path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StorageError, match="schema version 99"):
        create_app(settings)


_LIMITED = """
import sys
from pathlib import Path
import resource
from stack.store.app import create_app
from stack.store.settings import StoreSettings
from stack.store.testing import served
app = create_app(StoreSettings(path=Path(sys.argv[1])))
with served(app) as url:
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    print(url, flush=True)
    while line := sys.stdin.readline():
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print("freed", flush=True)
"""


def test_a_full_disk_is_503_and_the_store_recovers(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    command = [sys.executable, "-c", _LIMITED, str(tmp_path / "t.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with StoreClient(base_url=process.stdout.readline().strip()) as client:
            statuses = [client.export(bulky(trace)).status_code for trace in range(1, 8)]
            accepted = {trace for trace, status in enumerate(statuses, 1) if status == 200}
            assert set(statuses) == {200, 503}
            refused = client.export(bulky(99))
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
            assert client.get("/ready").status_code == 503
            assert client.found("{}") == accepted
            process.stdin.write("free\n")
            process.stdin.flush()
            assert process.stdout.readline() == "freed\n"
            assert client.export(bulky(100)).status_code == 200
            assert client.get("/ready").status_code == 200
            assert client.found("{}") == accepted | {100}
        process.stdin.close()
        assert process.wait(10) == 0


def test_a_reader_of_a_damaged_file_gets_503(settings: StoreSettings) -> None:
    with opened(settings) as client:
        client.export(*[bulky(trace) for trace in range(1, 5)])
        with sqlite3.connect(settings.path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()
        size = settings.path.stat().st_size
        with settings.path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (size - 4096))
        answer = client.get("/api/search", params={"q": "{}"})
        assert answer.status_code == 503
        assert "move it away" in answer.json()["error"]["message"]
        assert client.get("/api/echo").status_code == httpx.codes.OK
