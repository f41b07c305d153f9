"""Where the page's traces come from: a file, this process's own store, or a trace store behind Tempo's HTTP API."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from stack.analysis.source import DEFAULT_SINCE_S, TraceSource
from stack.analysis.trace import Trace

DEFAULT_LIMIT = 1000  # traces that the page looks at: the newest ones
SETTLED_S = 30.0  # a trace that was first seen so long ago is taken to be whole

Listing = list[tuple[str, object]]


class Feed(Protocol):
    """Traces of the router, newest first. Used by one thread at a time."""

    name: str  # for people: what is looked at
    empty: str  # for people: how to get something to look at

    def newest(self) -> Listing:
        """Returns (trace id, version) of the newest traces; the version changes when spans were added."""
        ...

    def load(self, trace_id: str) -> Trace | None:
        """Returns a trace, also one that :meth:`newest` leaves out; ``None`` when there is none of that id."""
        ...


class FileFeed:
    """The traces of a file, which was read before."""

    def __init__(self, path: Path, traces: Sequence[Trace]) -> None:
        self.name = f"file {path.name}"
        self.empty = f"{path.name} holds no traces."
        self._traces = {trace.trace_id: trace for trace in traces}

    def newest(self) -> Listing:
        return [(trace_id, 0) for trace_id in self._traces]

    def load(self, trace_id: str) -> Trace | None:
        return self._traces.get(trace_id)


class RemoteFeed:
    """A trace store with Tempo's API. Its listing does not tell when spans are added to a trace, so that young traces
    are read again until they have settled.
    """

    def __init__(
        self,
        url: str,
        since_s: float = DEFAULT_SINCE_S,
        limit: int = DEFAULT_LIMIT,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises SourceError for what is not a URL."""
        self.name = f"trace store {url}"
        self.empty = f"The trace store has no requests of the last {since_s / 3600:g} h."
        self._source = TraceSource(url)
        self._since_s, self._limit, self._monotonic = since_s, limit, monotonic
        self._first_seen: dict[str, float] = {}

    def newest(self) -> Listing:
        now = self._monotonic()
        ids = self._source.search(since_s=self._since_s, limit=self._limit)
        self._first_seen = {trace_id: self._first_seen.get(trace_id, now) for trace_id in ids}
        return [(t, "settled" if now - self._first_seen[t] >= SETTLED_S else now) for t in ids]

    def load(self, trace_id: str) -> Trace | None:
        return self._source.fetch(trace_id)

    def close(self) -> None:
        """Closes the connections; the feed is of no further use."""
        self._source.close()
