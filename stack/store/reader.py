"""Reads traces back. Every answer opens its own read-only connection; statements are short, so that a slow reader
never keeps the write-ahead log from being recycled. Runs on worker threads.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, TracesData

from stack.store import database
from stack.store.evaluate import SpanView, TraceSummary, by_key
from stack.store.otlp import SERVICE_NAME, Term, unpack
from stack.store.plan import Plan

PAGE = 64  # traces loaded at a time
RARE = 2000  # an indexed value in fewer traces than this drives the search; otherwise time does

_ROW = "SELECT t.id, t.trace_id, t.start_ns, t.end_ns, t.root_name, t.root_service FROM trace t"


@dataclass(frozen=True, slots=True)
class Window:
    """Which traces a search considers: those that overlap [``start_ns``, ``end_ns``], by total duration."""

    start_ns: int = 0
    end_ns: int = 2**63 - 1
    min_duration_ns: int = 0
    max_duration_ns: int = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trace that a search may match, and its spans as serialised ``TracesData``."""

    summary: TraceSummary
    data: bytes


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens a connection for one answer; SQLite's errors become StorageError."""
    try:
        with database.open_reader(path) as connection:
            yield connection
    except sqlite3.Error as error:
        raise database.failure(path, error) from error


def load(path: Path, trace_id: bytes) -> TracesData | None:
    """Returns a trace, each span once; None when the store does not have it."""
    with reading(path) as connection:
        rows = connection.execute(
            "SELECT data FROM chunk WHERE trace = (SELECT id FROM trace WHERE trace_id = ?) ORDER BY id", (trace_id,)
        ).fetchall()
    return decode(unpack([row[0] for row in rows])) if rows else None


def newest(path: Path, service: str, limit: int) -> list[tuple[bytes, int]]:
    """Returns (trace id, version) of the newest traces of ``service``; each arrival raises its version."""
    query = (
        "SELECT t.trace_id, (SELECT max(id) FROM chunk WHERE trace = t.id) FROM trace t "
        "WHERE EXISTS (SELECT 1 FROM posting WHERE key = ? AND value = ? AND trace = t.id) "
        "ORDER BY t.start_ns DESC, t.id DESC LIMIT ?"
    )
    with reading(path) as connection:
        return connection.execute(query, (SERVICE_NAME, service, limit)).fetchall()


def decode(data: bytes) -> TracesData:
    """Parses stored spans and leaves out what a retry delivered twice (same span id: the first stays)."""
    traces = TracesData.FromString(data)
    seen: set[bytes] = set()
    for resource_spans in traces.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            fresh = []
            for span in scope_spans.spans:
                if span.span_id not in seen:
                    seen.add(span.span_id)
                    fresh.append(span)
            if len(fresh) < len(scope_spans.spans):
                whole = ScopeSpans(spans=fresh)
                scope_spans.ClearField("spans")
                scope_spans.spans.extend(whole.spans)
    _drop_empty(traces)
    return traces


def _drop_empty(traces: TracesData) -> None:
    for index in range(len(traces.resource_spans) - 1, -1, -1):
        if not any(scope_spans.spans for scope_spans in traces.resource_spans[index].scope_spans):
            del traces.resource_spans[index]


def views(traces: TracesData, summary: TraceSummary) -> Iterator[SpanView]:
    """Yields every span of a decoded trace with its resource."""
    for resource_spans in traces.resource_spans:
        resource = by_key(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield SpanView(span, resource, summary)


def candidates(connection: sqlite3.Connection, plan: Plan, window: Window) -> Iterator[Candidate]:
    """Yields the traces that may match, newest start first. Raises ``sqlite3.Error``.

    Pages by (start, id), so that what is written meanwhile neither repeats nor hides a trace.
    """
    condition, parameters = _condition(connection, plan, window)
    after = (2**63 - 1, 2**63 - 1)
    while True:
        where = f"WHERE (t.start_ns, t.id) < (?, ?) AND {condition}"
        order = f"ORDER BY t.start_ns DESC, t.id DESC LIMIT {PAGE}"
        rows = connection.execute(f"{_ROW} {where} {order}", (*after, *parameters)).fetchall()
        summaries = [TraceSummary(*row) for row in rows]
        blobs = _blobs(connection, summaries)
        for summary in summaries:
            if blobs[summary.key]:  # else evicted between the two statements
                yield Candidate(summary, unpack(blobs[summary.key]))
        if len(summaries) < PAGE:
            return
        after = (summaries[-1].start_ns, summaries[-1].key)


def _condition(connection: sqlite3.Connection, plan: Plan, window: Window) -> tuple[str, tuple[object, ...]]:
    condition = (
        "t.start_ns <= ? AND t.end_ns >= ? AND t.end_ns - t.start_ns >= ? AND t.end_ns - t.start_ns <= ? "
        f"AND {plan.sql}"
    )
    limits = (window.end_ns, window.start_ns, window.min_duration_ns, window.max_duration_ns)
    rarest = min(((_frequency(connection, term), term) for term in plan.terms), default=(RARE, None))
    if rarest[0] < RARE and rarest[1] is not None:
        condition = f"t.id IN (SELECT trace FROM posting WHERE key = ? AND value = ?) AND {condition}"
        return condition, (*rarest[1], *limits, *plan.parameters)
    return condition, (*limits, *plan.parameters)


def _frequency(connection: sqlite3.Connection, term: Term) -> int:
    """Returns in how many traces an indexed value occurs, counting no further than RARE."""
    query = f"SELECT count(*) FROM (SELECT 1 FROM posting WHERE key = ? AND value = ? LIMIT {RARE})"
    return connection.execute(query, term).fetchone()[0]


def _blobs(connection: sqlite3.Connection, summaries: list[TraceSummary]) -> dict[int, list[bytes]]:
    blobs: dict[int, list[bytes]] = defaultdict(list)
    keys = [summary.key for summary in summaries]
    marks = ",".join("?" * len(keys))
    for trace, data in connection.execute(f"SELECT trace, data FROM chunk WHERE trace IN ({marks}) ORDER BY id", keys):
        blobs[trace].append(data)
    return blobs


def term_values(connection: sqlite3.Connection, key: str, limit: int) -> list[str]:
    """Returns the distinct indexed values of ``key``, at most ``limit``."""
    rows = connection.execute("SELECT DISTINCT value FROM posting WHERE key = ? LIMIT ?", (key, limit))
    return [row[0] for row in rows]
