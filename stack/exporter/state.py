"""What must survive a restart, in one small SQLite file: how far was searched, and which traces were counted.

A trace is written here *before* it reaches the metrics. A process that dies in between loses what Prometheus had not
read yet, as every counter does, and counts nothing twice. One process at a time holds the file; one thread uses it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SCHEMA_VERSION = 1
_PARAMETERS = 500  # in one statement
_SCHEMA = """
CREATE TABLE counted (
    trace_id BLOB PRIMARY KEY, counted_s REAL NOT NULL, ended_s REAL, mode TEXT, ttft_s REAL
) WITHOUT ROWID;
CREATE INDEX counted_at ON counted (counted_s);
CREATE INDEX sample ON counted (mode, ended_s) WHERE ttft_s IS NOT NULL;
CREATE TABLE cursor (name TEXT PRIMARY KEY, unix_s REAL NOT NULL) WITHOUT ROWID;
"""


class StateError(RuntimeError):
    """The state file cannot be used; one line for the user."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A counted trace; ``mode`` and ``ttft_s`` only when it is in the figures."""

    trace_id: str
    ended_s: float | None = None
    mode: str | None = None
    ttft_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One TTFT in seconds, and when its request ended in Unix seconds."""

    ended_s: float
    ttft_s: float


class State:
    """The open file; close it with :meth:`close`. Every method raises :class:`StateError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=1.0, check_same_thread=False)
            self._open()
        except (OSError, sqlite3.Error) as error:
            raise StateError(self._problem(error)) from None

    def _open(self) -> None:
        connection = self._connection
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT")
        elif version != SCHEMA_VERSION:
            connection.close()
            raise StateError(f"{self._path} is of version {version}, not {SCHEMA_VERSION}; move it away")

    def _problem(self, error: Exception) -> str:
        hint = "; another exporter uses it" if "locked" in str(error) else ""
        return f"exporter state {self._path}: {error}{hint}"

    @contextmanager
    def _guarded(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._connection:  # commits, or rolls back
                yield self._connection
        except sqlite3.Error as error:
            raise StateError(self._problem(error)) from None

    def close(self) -> None:
        self._connection.close()

    def cursor(self, name: str) -> float | None:
        """Returns how far was searched, in Unix seconds; ``None`` before the first time."""
        with self._guarded() as connection:
            row = connection.execute("SELECT unix_s FROM cursor WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def commit(self, entries: Iterable[Entry], cursors: dict[str, float], now_s: float) -> None:
        """Writes what was counted together with how far was searched."""
        rows = [(bytes.fromhex(e.trace_id), now_s, e.ended_s, e.mode, e.ttft_s) for e in entries]
        with self._guarded() as connection:
            connection.executemany("INSERT OR IGNORE INTO counted VALUES (?, ?, ?, ?, ?)", rows)
            connection.executemany("INSERT OR REPLACE INTO cursor VALUES (?, ?)", cursors.items())

    def uncounted(self, trace_ids: Collection[str]) -> set[str]:
        """Returns those of ``trace_ids`` that were not counted."""
        ids = [bytes.fromhex(trace_id) for trace_id in trace_ids]
        counted: set[bytes] = set()
        with self._guarded() as connection:
            for start in range(0, len(ids), _PARAMETERS):
                some = ids[start : start + _PARAMETERS]
                query = f"SELECT trace_id FROM counted WHERE trace_id IN ({','.join('?' * len(some))})"
                counted.update(row[0] for row in connection.execute(query, some))
        return {trace_id.hex() for trace_id in ids if trace_id not in counted}

    def samples(self, mode: str, since_s: float, limit: int) -> list[Sample]:
        """Returns the newest TTFTs of ``mode`` whose requests ended after ``since_s``, newest first."""
        query = (
            "SELECT ended_s, ttft_s FROM counted WHERE mode = ? AND ended_s >= ? AND ttft_s IS NOT NULL "
            "ORDER BY ended_s DESC LIMIT ?"
        )
        with self._guarded() as connection:
            return [Sample(*row) for row in connection.execute(query, (mode, since_s, limit))]

    def prune(self, before_s: float) -> None:
        """Forgets what was counted before ``before_s``."""
        with self._guarded() as connection:
            connection.execute("DELETE FROM counted WHERE counted_s < ?", (before_s,))
