"""Finds every trace of a time window although a search returns ``limit`` traces at most, in no order.

A window that returns as many as the limit may hold more: it is halved, down to one second (Tempo's resolution), and
only then is the limit raised. What still does not fit is reported, never passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.analysis.source import TraceSource

MAX_LIMIT = 10_000  # traces in one answer: the embedded store's bound
MAX_WIDTH_S = 86_400  # of one search: Tempo refuses more than a week


@dataclass(frozen=True, slots=True)
class Piece:
    """All traces of the window up to ``end_s``; ``overflowed``: there are more than can be asked for."""

    end_s: int
    trace_ids: list[str]
    overflowed: bool = False


def scan(source: TraceSource, query: str, start_s: int, end_s: int, limit: int) -> Iterator[Piece]:
    """Yields the window's pieces, oldest first, in whole seconds of Unix time. Raises SourceError.

    A trace that overlaps several pieces comes with each of them.
    """
    width = MAX_WIDTH_S
    while start_s < end_s:
        stop_s = min(start_s + width, end_s)
        ids = source.search_between(start_s, stop_s, limit=limit, query=query)
        if len(ids) >= limit and stop_s - start_s > 1:
            width = (stop_s - start_s) // 2
            continue
        raised = limit
        while len(ids) >= raised and raised < MAX_LIMIT:
            raised = min(2 * raised, MAX_LIMIT)
            ids = source.search_between(start_s, stop_s, limit=raised, query=query)
        yield Piece(stop_s, ids, overflowed=len(ids) >= raised)
        start_s, width = stop_s, min(2 * width, MAX_WIDTH_S)
