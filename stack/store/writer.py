"""The one thread that changes the database.

Requests hand over split batches and get a future; the ``kvpath-store-writer`` thread commits whatever waits as one
transaction and only then resolves the futures: what a sender was told is accepted survives the process. The queue is
bounded in bytes. Between batches, and before each commit that needs room, the thread evicts: first by age, then by
size, always the traces that arrived first.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from stack.store import database
from stack.store.errors import OverloadedError, StorageError, UnavailableError
from stack.store.metrics import StoreMetrics
from stack.store.otlp import Batch
from stack.store.settings import StoreSettings

log = logging.getLogger(__name__)

GROUP_BYTES = 4 * 1024 * 1024  # decoded bytes that go into one transaction at most, unless one request is larger
EVICTION_SHARE = 20  # evicts a twentieth of the traces at a time
EXPIRY_STEP = 2000  # traces deleted in one transaction when they expire
MAINTENANCE_INTERVAL_S = 10.0
ROOM_FACTOR = 1.25  # a batch's rows and indexes against its decoded bytes, incompressible at worst


@dataclass(frozen=True, slots=True)
class _Entry:
    batch: Batch
    done: Future[None]


class Writer:
    """Owns the write connection. :meth:`submit` from any thread; :meth:`stop` drains and closes."""

    def __init__(
        self, settings: StoreSettings, metrics: StoreMetrics, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        """Opens the database; raises StorageError. ``clock_ns`` gives Unix nanoseconds."""
        self._settings = settings
        self._metrics = metrics
        self._clock_ns = clock_ns
        self._connection = database.open_writer(settings.path, _log_allowance(settings) // 4)
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending_bytes = 0
        self._stopping = False
        self._failure: StorageError | None = None
        self._thread = threading.Thread(target=self._run, name="kvpath-store-writer", daemon=True)
        self._thread.start()

    @property
    def pending_bytes(self) -> int:
        """Decoded bytes that wait for the writer."""
        return self._pending_bytes

    @property
    def failure(self) -> UnavailableError | None:
        """Why the store cannot write at the moment; None when the last write succeeded."""
        if not self._thread.is_alive():
            return StorageError(f"trace store {self._settings.path}: the writer has stopped; restart the store")
        return self._failure

    def reserve(self, size: int) -> None:
        """Claims ``size`` bytes of the queue before the work of parsing; raises OverloadedError when it is full."""
        with self._lock:
            if self._stopping:
                raise OverloadedError("the trace store is shutting down")
            if self._pending_bytes and self._pending_bytes + size > self._settings.queue_bytes:
                raise OverloadedError(
                    f"the write queue is full ({self._pending_bytes} bytes wait); retry, or raise queue_bytes"
                )
            self._pending_bytes += size

    def release(self, size: int) -> None:
        """Gives a claim back."""
        with self._lock:
            self._pending_bytes -= size

    def submit(self, batch: Batch) -> Future[None]:
        """Queues a batch; the future ends when it is committed, or raises StorageError."""
        entry = _Entry(batch, Future())
        entry.done.set_running_or_notify_cancel()  # a sender that hangs up cannot take its spans back
        with self._lock:
            if self._stopping:
                raise OverloadedError("the trace store is shutting down")
            self._queue.put(entry)
        return entry.done

    def stop(self, timeout_s: float = 4.0) -> bool:
        """Commits what waits and closes the database; returns whether that took less than ``timeout_s``."""
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            stopped = False
            while not stopped:
                group, stopped = self._take()
                if group:
                    self._commit(group)
                else:
                    self._guarded(self._maintain)
        finally:
            self._guarded(self._close)

    def _take(self) -> tuple[list[_Entry], bool]:
        """Waits for work; returns what one transaction should hold, and whether to stop after it."""
        group: list[_Entry] = []
        size = 0
        try:
            while size < GROUP_BYTES:
                entry = self._queue.get_nowait() if group else self._queue.get(timeout=MAINTENANCE_INTERVAL_S)
                if entry is None:
                    return group, True
                group.append(entry)
                size += entry.batch.size
        except queue.Empty:
            pass
        return group, False

    def _commit(self, group: list[_Entry]) -> None:
        try:
            self._maintain(sum(entry.batch.size for entry in group))
            database.insert(self._connection, [entry.batch for entry in group], self._clock_ns())
        except Exception as error:
            if len(group) > 1:  # one bad batch must not take its neighbours with it
                for entry in group:
                    self._commit([entry])
                return
            self._fail(group[0], error)
            return
        if self._failure is not None:
            log.warning("trace store %s: writing again", self._settings.path)
            self._failure = None
        for entry in group:
            self._metrics.stored.inc(entry.batch.spans)
            entry.done.set_result(None)

    def _fail(self, entry: _Entry, error: Exception) -> None:
        failed = database.failure(self._settings.path, error)
        if self._failure is None:
            log.error("%s", failed)
        self._failure = failed
        self._metrics.dropped.inc(entry.batch.spans)
        entry.done.set_exception(failed)

    def _maintain(self, incoming: int = 0) -> None:
        """Evicts by age, then by size until ``incoming`` more bytes fit."""
        connection, settings = self._connection, self._settings
        before_ns = self._clock_ns() - int(settings.retention_s * 1e9)
        while up_to := database.expired(connection, before_ns, EXPIRY_STEP):
            self._metrics.evicted_age.inc(database.evict(connection, up_to))
        allowance = settings.max_bytes - _log_allowance(settings)
        room = int(incoming * ROOM_FACTOR)
        while database.live_bytes(connection) + room > allowance:
            up_to = database.oldest_share(connection, EVICTION_SHARE)
            if not up_to:
                break
            self._metrics.evicted_size.inc(database.evict(connection, up_to))
        if database.file_bytes(settings.path) + room > settings.max_bytes:
            database.checkpoint(connection)  # usually it is the log that a slow reader let grow
        if database.file_bytes(settings.path) + room > settings.max_bytes:
            database.compact(connection)

    def _close(self) -> None:
        database.checkpoint(self._connection)
        self._connection.close()

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (sqlite3.Error, OSError) as error:
            self._failure = database.failure(self._settings.path, error)
            log.error("%s", self._failure)


def _log_allowance(settings: StoreSettings) -> int:
    """The part of ``max_bytes`` kept free for the write-ahead log: one transaction and what an eviction adds."""
    return min(settings.max_bytes // 3, settings.max_body_bytes + 16 * 1024 * 1024)
