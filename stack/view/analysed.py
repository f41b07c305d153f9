"""The analysed traces behind the page, kept between its requests so that each trace is analysed once.

:meth:`AnalysedTraces.refresh` works for a bounded time and says how much is left, so that the page shows the newest
requests at once and fills up. Clock bounds are pooled over all traces, as ``kvpath report`` does: a trace of several
hosts that was analysed with looser bounds counts as left to do. Any thread; one at a time does the work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from stack.analysis.clock import Bounds, domain_names
from stack.analysis.compare import Analysed, analyse
from stack.analysis.critical_path import trace_bounds
from stack.analysis.trace import Trace
from stack.view.feed import Feed
from stack.view.rows import request_row

BUDGET_S = 0.3  # of analysis in one call


@dataclass(frozen=True, slots=True)
class Entry:
    """One trace of the page; ``pool`` is the generation of the pooled bounds that it was analysed with."""

    version: object
    analysed: Analysed
    row: dict[str, Any]
    bounds: Bounds
    several_clocks: bool
    pool: int


class AnalysedTraces:
    """Entries by trace id, newest first."""

    def __init__(self, feed: Feed, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.feed = feed
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._pooled, self._pool = Bounds(), 0

    def refresh(self, budget_s: float = BUDGET_S) -> tuple[list[Entry], int]:
        """Analyses what is new for about ``budget_s`` seconds; returns the entries and how many traces are left."""
        with self._lock:
            deadline = self._monotonic() + budget_s
            listing = self.feed.newest()
            known = self._entries
            fresh = [(t, v) for t, v in listing if t not in known or known[t].version != v]
            left = self._read(fresh, deadline)
            self._entries = {t: self._entries[t] for t, _ in listing if t in self._entries}
            self._pool_bounds()
            stale = [(t, e.version) for t, e in self._entries.items() if e.several_clocks and e.pool != self._pool]
            left += self._read(stale, deadline)
            return list(self._entries.values()), left

    def complete(self) -> list[Entry]:
        """Returns the entries when nothing is left to do."""
        entries, left = self.refresh()
        while left:
            entries, left = self.refresh()
        return entries

    def find(self, wanted: str) -> Trace | None:
        """Returns the trace of a trace id or of a request id; ``None`` when there is none."""
        with self._lock:
            by_request = (t for t, e in self._entries.items() if e.row["request_id"] == wanted)
            trace_id = wanted.lower() if is_trace_id(wanted.lower()) else next(by_request, None)
            return None if trace_id is None else self.feed.load(trace_id)

    @property
    def pooled(self) -> Bounds:
        """The clock bounds of all traces together."""
        return self._pooled

    def _read(self, wanted: list[tuple[str, object]], deadline: float) -> int:
        """Reads and analyses until the deadline, at least one; returns how many it did not get to."""
        for done, (trace_id, version) in enumerate(wanted):
            if done and self._monotonic() > deadline:
                return len(wanted) - done
            trace = self.feed.load(trace_id)
            if trace is not None and trace.spans:  # else the store dropped it meanwhile
                self._entries[trace_id] = self._entry(trace, version)
        return 0

    def _entry(self, trace: Trace, version: object) -> Entry:
        bounds = trace_bounds(trace)
        several = len(set(domain_names(trace).values())) > 1
        analysed = analyse(trace, self._pooled if several else None)
        return Entry(version, analysed, request_row(trace, analysed), bounds, several, self._pool)

    def _pool_bounds(self) -> None:
        pooled = reduce(Bounds.pooled, (e.bounds for e in self._entries.values() if e.several_clocks), Bounds())
        if pooled.slack != self._pooled.slack:
            self._pooled = pooled
            self._pool += 1


def is_trace_id(text: str) -> bool:
    """Whether ``text`` is a trace id in lower-case hex."""
    return len(text) == 32 and not set(text) - set("0123456789abcdef")
