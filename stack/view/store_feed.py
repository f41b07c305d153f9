"""The store's own traces, read from its SQLite file."""

from __future__ import annotations

from pathlib import Path

from connector import names
from stack.analysis import store_file
from stack.analysis.trace import Trace
from stack.store import reader
from stack.view.feed import DEFAULT_LIMIT, Listing


class StoreFeed:
    """The newest traces of the store that this process serves. Raises the store's StorageError."""

    def __init__(self, path: Path, limit: int = DEFAULT_LIMIT) -> None:
        self.name = f"this trace store ({path.name})"
        self.empty = "No request has been traced yet."
        self._path, self._limit = path, limit

    def newest(self) -> Listing:
        found = reader.newest(self._path, names.SERVICE_ROUTER, self._limit)
        return [(trace_id.hex(), version) for trace_id, version in found]

    def load(self, trace_id: str) -> Trace | None:
        return store_file.load(self._path, bytes.fromhex(trace_id))
