"""The SQLite file: its schema, and every statement that changes it.

Three tables. ``trace`` has one row a trace; ids grow in order of arrival, so the oldest traces are an id range.
``chunk`` has one blob per request and trace. ``posting`` says which traces contain an indexed value: a superset for
search, which then decides on the decoded spans. One connection writes (the writer thread's); readers open their own.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from stack.store.errors import StorageError
from stack.store.otlp import Batch, TracePart

SCHEMA_VERSION = 1
WAL_BYTES = 2 * 1024 * 1024  # of write-ahead log before SQLite copies it into the file, or less in a small store

_SCHEMA = """
CREATE TABLE IF NOT EXISTS trace (
    id INTEGER PRIMARY KEY, trace_id BLOB NOT NULL UNIQUE, received_ns INTEGER NOT NULL,
    start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, root_name TEXT, root_service TEXT);
CREATE INDEX IF NOT EXISTS trace_start ON trace (start_ns);
CREATE TABLE IF NOT EXISTS chunk (id INTEGER PRIMARY KEY, trace INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS chunk_trace ON chunk (trace);
CREATE TABLE IF NOT EXISTS posting (
    key TEXT NOT NULL, value TEXT NOT NULL, trace INTEGER NOT NULL, PRIMARY KEY (key, value, trace)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS posting_trace ON posting (trace);
"""

_UPSERT = """
INSERT INTO trace (trace_id, received_ns, start_ns, end_ns, root_name, root_service) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (trace_id) DO UPDATE SET start_ns = min(start_ns, excluded.start_ns), end_ns = max(end_ns, excluded.end_ns),
    root_name = coalesce(root_name, excluded.root_name), root_service = coalesce(root_service, excluded.root_service)
RETURNING id
"""


def failure(path: Path, error: Exception) -> StorageError:
    """Says in one line what SQLite refused and what to try."""
    hint = "free space, or lower max_bytes" if "full" in str(error) or "I/O" in str(error) else "check the file"
    if "malformed" in str(error) or "not a database" in str(error):
        hint = "the file is damaged: move it away and start again"
    return StorageError(f"trace store {path}: {error}; {hint}")


def open_writer(path: Path, log_bytes: int = WAL_BYTES) -> sqlite3.Connection:
    """Opens (and creates) the database for the one writer; raises StorageError. Statements begin explicitly.

    ``log_bytes`` is the length of the write-ahead log from which SQLite copies it into the file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    except (OSError, sqlite3.Error) as error:
        raise failure(path, error) from error
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only has effect on a new file
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        page = connection.execute("PRAGMA page_size").fetchone()[0]
        connection.execute(f"PRAGMA wal_autocheckpoint = {max(1, min(log_bytes, WAL_BYTES) // page)}")
        connection.execute("PRAGMA journal_size_limit = 0")
        connection.execute("PRAGMA cache_size = -32768")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, SCHEMA_VERSION):
            raise sqlite3.DatabaseError(f"schema version {version}, this store writes {SCHEMA_VERSION}; move it away")
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except sqlite3.Error as error:
        connection.close()
        raise failure(path, error) from error
    return connection


def open_reader(path: Path) -> closing[sqlite3.Connection]:
    """Opens a connection that cannot write, for one answer: ``with open_reader(path) as connection``.

    Without a write-ahead log there is no writer: the file may then lie in a folder where no lock can be made.
    """
    alone = not path.with_name(path.name + "-wal").exists()
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if alone else ''}"
    connection = sqlite3.connect(uri, uri=True, timeout=5, isolation_level=None)
    return closing(connection)


def insert(connection: sqlite3.Connection, batches: list[Batch], received_ns: int) -> None:
    """Stores ``batches`` in one transaction: all of them or none (``sqlite3.Error``)."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for batch in batches:
            for part in batch.parts.values():
                _insert_part(connection, part, received_ns)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _insert_part(connection: sqlite3.Connection, part: TracePart, received_ns: int) -> None:
    row = (part.trace_id, received_ns, part.start_ns, part.end_ns, part.root_name, part.root_service)
    trace = connection.execute(_UPSERT, row).fetchone()[0]
    connection.execute("INSERT INTO chunk (trace, data) VALUES (?, ?)", (trace, part.blob()))
    postings = [(key, value, trace) for key, value in part.terms]
    connection.executemany("INSERT OR IGNORE INTO posting VALUES (?, ?, ?)", postings)


def live_bytes(connection: sqlite3.Connection) -> int:
    """Returns the bytes of the file's pages that hold something."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def file_bytes(path: Path) -> int:
    """Returns what the database takes on disk, with its write-ahead log and shared-memory file."""
    total = 0
    for suffix in ("", "-wal", "-shm"):
        try:
            total += path.with_name(path.name + suffix).stat().st_size
        except OSError:
            continue
    return total


def oldest_share(connection: sqlite3.Connection, share: int) -> int:
    """Returns the id up to which lies about the oldest ``share``-th of all traces; 0 when there are none."""
    first, last = connection.execute("SELECT coalesce(min(id), 0), coalesce(max(id), 0) FROM trace").fetchone()
    return first + (last - first) // share if first else 0


def expired(connection: sqlite3.Connection, before_ns: int, at_most: int) -> int:
    """Returns the id up to which traces arrived before ``before_ns``, within the oldest ``at_most``; 0 for none."""
    oldest = connection.execute("SELECT id, received_ns FROM trace ORDER BY id LIMIT ?", (at_most,))
    last = 0
    for trace, received_ns in oldest:
        if received_ns >= before_ns:
            break
        last = trace
    oldest.close()
    return last


def evict(connection: sqlite3.Connection, up_to: int) -> int:
    """Deletes every trace with an id up to ``up_to``; returns how many there were."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("DELETE FROM posting WHERE trace <= ?", (up_to,))
        connection.execute("DELETE FROM chunk WHERE trace <= ?", (up_to,))
        count = connection.execute("DELETE FROM trace WHERE id <= ?", (up_to,)).rowcount
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return count


def compact(connection: sqlite3.Connection) -> None:
    """Gives unused pages back to the file system."""
    connection.executescript("PRAGMA incremental_vacuum")  # execute() would free a single page
    checkpoint(connection)


def checkpoint(connection: sqlite3.Connection) -> None:
    """Copies the write-ahead log into the file and truncates it (waits for readers up to the busy timeout)."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
