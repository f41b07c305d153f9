"""The table in this process, on the event loop's thread; ages are the monotonic clock's.

Every entry lives equally long and none is renewed, so that the oldest stands first, as the table has it. An
expired one stays as long again, to be told from one that never was. A full table gives up its oldest.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable

from stack.router.conversations.entry import Entry

Row = tuple[float, bytes]  # stored at, encoded entry


class ProcessMemory:
    """At most ``capacity`` entries, for ``retain_s`` seconds each. ``evicted`` counts those given up early."""

    def __init__(self, capacity: int, retain_s: float, clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._retain_s = retain_s
        self._clock = clock
        self._rows: OrderedDict[bytes, Row] = OrderedDict()  # a dict would be slow to say which is first
        self._bytes = 0
        self.evicted = 0
        self.errors = 0  # there is nothing that could fail

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def size(self) -> int:
        """What the entries take, in bytes, with the table itself."""
        return self._bytes + sys.getsizeof(self._rows)

    async def put(self, key: bytes, entry: Entry, age_s: float) -> None:
        self._remove(key)
        self._purge()
        while len(self._rows) >= self._capacity:
            self._remove(next(iter(self._rows)))
            self.evicted += 1
        row = (self._clock() - age_s, entry.encode())
        self._rows[key] = row
        self._bytes += _size(key, row)

    async def take(self, key: bytes) -> tuple[Entry, float] | None:
        row = self._remove(key)
        if row is None:
            return None
        return Entry.decode_from(row[1]), self._clock() - row[0]

    async def stop(self) -> None:
        pass

    def _purge(self) -> None:
        oldest = self._clock() - self._retain_s
        while self._rows:
            key = next(iter(self._rows))
            if self._rows[key][0] >= oldest:
                return
            self._remove(key)

    def _remove(self, key: bytes) -> Row | None:
        row = self._rows.pop(key, None)
        if row is not None:
            self._bytes -= _size(key, row)
        return row


def _size(key: bytes, row: Row) -> int:
    return sys.getsizeof(key) + sys.getsizeof(row) + sys.getsizeof(row[0]) + sys.getsizeof(row[1])
