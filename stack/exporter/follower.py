"""Follows finished traces: finds them, waits for their late spans, counts each exactly once.

Two searches share one mechanism. The *main* one asks for requests whose SERVER span is there, from a little before
where it got to the last time. The *sweep* looks once more at everything that is ``sweep_after_s`` old: traces that
reached the store too late for the main search, and requests whose SERVER span never came (a router that died).

A trace counts when it lacks nothing, or ``grace_s`` after it was found with something still lacking. "Found" is at
most one poll after its end, and counting from there needs no agreement between the router's clock and this one.
Owned by the polling thread, which has a few more to fetch traces; times are Unix seconds of ``clock``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from connector import names
from stack.analysis.source import ROUTER_QUERY, SourceError, TraceSource, UnreachableError
from stack.analysis.trace import Trace
from stack.exporter.difference import median_difference
from stack.exporter.judge import MODES, Judged, RecentBounds, judge, unreadable
from stack.exporter.metrics import ExporterMetrics
from stack.exporter.scan import scan
from stack.exporter.settings import ExporterSettings
from stack.exporter.state import Entry, Sample, State

FINISHED_QUERY = f'{{ resource.service.name = "{names.SERVICE_ROUTER}" && kind = server }}'
MAIN, SWEEP, FLOOR = "main", "sweep", "floor"  # FLOOR: what ended before it is not counted any more

MAX_READS = 500  # traces read in one poll
READERS = 8  # at once: a fetch is mostly waiting for the trace store
MAX_WAITING = 20_000  # from here on nothing new is searched for until some are counted
SWEEP_EVERY_S = 60.0
SLOWEST_RETRY_S = 30.0
COMPARED_BLOCKS = 30  # stretches of time that the sliding window consists of
COMPARED_SAMPLES = 1000  # newest requests of a mode that are compared


@dataclass(slots=True)
class Waiting:
    """A trace that was found and is not counted yet."""

    since_s: float
    give_up_s: float
    due_s: float
    tries: int = 0
    last: Judged | None = None


class Follower:
    """Call :meth:`poll` again and again; every metric follows from it."""

    def __init__(
        self,
        settings: ExporterSettings,
        source: TraceSource,
        state: State,
        metrics: ExporterMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises StateError."""
        self._settings, self._source, self._state, self._metrics, self._clock = settings, source, state, metrics, clock
        self._waiting: dict[str, Waiting] = {}
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="kvpath-exporter-reader")
        self._bounds = RecentBounds()
        self._problems: list[str] = []
        begin = clock() - settings.since_s
        # What waited when the process ended must be found again, so a restart goes back by the grace as well.
        stored = state.cursor(MAIN)
        self._reached = begin if stored is None else stored - settings.grace_s
        self._swept = state.cursor(SWEEP) or begin
        self._floor = state.cursor(FLOOR) or begin
        metrics.lag.set_function(lambda: clock() - self._counted_up_to)
        self._counted_up_to = self._reached
        self._polled_at = begin
        self._total = 0
        self._compared: tuple[int, int] | None = None
        state.commit((), {FLOOR: self._floor}, begin)

    def poll(self) -> list[str]:
        """Finds, reads and counts; returns what went wrong with single traces or seconds, a line each.

        Raises SourceError when the trace store does not answer, StateError when the state cannot be written. What was
        found by then is kept and tried again.
        """
        now = self._polled_at = self._clock()
        self._problems = []
        if len(self._waiting) < MAX_WAITING:
            self._search(now)
        done = self._read(now)
        self._count(done, now)
        self._compare(now)
        return self._problems

    def close(self) -> None:
        """Ends the readers; between polls."""
        self._readers.shutdown(cancel_futures=True)

    @property
    def busy(self) -> bool:
        """Whether the last poll left work behind: a backlog after the store, or this process, was away."""
        now = self._polled_at
        behind = self._reached < now and len(self._waiting) < MAX_WAITING
        return behind or any(waiting.due_s <= now for waiting in self._waiting.values())

    def _search(self, now: float) -> None:
        settings = self._settings
        self._reached = self._find(FINISHED_QUERY, self._reached, now, now)
        end = now - settings.sweep_after_s
        if end - self._swept >= SWEEP_EVERY_S:
            self._swept = self._find(ROUTER_QUERY, self._swept, end, now)

    def _find(self, query: str, begin: float, end: float, now: float) -> float:
        """Takes up what is new between ``begin`` and ``end``; returns how far it got before too much was waiting."""
        reached = begin
        start = math.floor(begin - self._settings.lookback_s)
        for piece in scan(self._source, query, start, max(math.ceil(end), start + 1), self._settings.limit):
            if piece.overflowed:
                self._problems.append(f"the second before {piece.end_s} holds more traces than a search returns")
            mine = [t for t in piece.trace_ids if self._is_mine(t) and t not in self._waiting]
            for trace_id in sorted(self._state.uncounted(mine)):
                give_up_s = now + self._settings.sweep_after_s
                self._waiting[trace_id] = Waiting(since_s=now, give_up_s=give_up_s, due_s=now)
            reached = max(reached, min(piece.end_s, end))
            if len(self._waiting) >= MAX_WAITING and reached > begin:
                break
        return reached

    def _is_mine(self, trace_id: str) -> bool:
        return int(trace_id[-14:], 16) % self._settings.shards == self._settings.shard

    def _read(self, now: float) -> list[Judged]:
        """Reads what is due; returns what can be counted. Raises SourceError when nothing could be read."""
        due = [(t, waiting) for t, waiting in self._waiting.items() if waiting.due_s <= now][:MAX_READS]
        failed: SourceError | None = None
        read = 0
        for (_, waiting), found in zip(due, self._readers.map(self._fetch, [t for t, _ in due]), strict=True):
            if isinstance(found, UnreachableError):
                raise found
            if isinstance(found, SourceError):
                failed = found
                self._problems.append(str(found))
            else:
                read += 1
                if found is not None:
                    self._judge(found, waiting, now)
            waiting.due_s = self._next(waiting, now)
        final = [waiting.last or unreadable(t) for t, waiting in due if self._is_final(waiting, now)]
        if failed is not None and not read and not final:
            raise failed
        return final

    def _fetch(self, trace_id: str) -> Trace | SourceError | None:
        """Runs on a reader's thread."""
        try:
            return self._source.fetch(trace_id)
        except SourceError as error:
            return error

    def _judge(self, trace: Trace, waiting: Waiting, now: float) -> None:
        if waiting.last is None:
            waiting.give_up_s = now + self._settings.grace_s
        waiting.last = judge(trace, self._bounds.add(trace, now))
        if waiting.last.ended_ns is not None:
            waiting.since_s = min(waiting.since_s, waiting.last.ended_ns / 1e9)

    def _next(self, waiting: Waiting, now: float) -> float:
        pause = min(self._settings.poll_s * 2**waiting.tries, SLOWEST_RETRY_S)
        waiting.tries += 1
        return max(min(now + pause, waiting.give_up_s), now)

    def _is_final(self, waiting: Waiting, now: float) -> bool:
        return now >= waiting.give_up_s or (waiting.last is not None and waiting.last.settled)

    def _count(self, done: list[Judged], now: float) -> None:
        """Writes first, counts then: see :mod:`stack.exporter.state`."""
        entries = [_entry(judged, self._is_new(judged)) for judged in done]
        self._state.commit(entries, {MAIN: self._reached, SWEEP: self._swept, FLOOR: self._floor}, now)
        for judged in done:
            del self._waiting[judged.trace_id]
            if self._is_new(judged):
                self._metrics.count(judged)
                self._total += 1
        self._counted_up_to = min((w.since_s for w in self._waiting.values()), default=self._reached)
        self._counted_up_to = min(self._counted_up_to, self._reached)
        self._metrics.waiting.set(len(self._waiting))
        # What is forgotten must not look new when a span joins it even later, such as that of a long lease.
        forget = min(self._swept - self._settings.sweep_after_s, now - self._settings.window_s)
        self._state.prune(forget)
        self._floor = max(self._floor, forget)

    def _is_new(self, judged: Judged) -> bool:
        """Whether it ended after the very first start, and not so long ago that it may be counted and forgotten."""
        return judged.ended_ns is None or judged.ended_ns / 1e9 >= self._floor

    def _compare(self, now: float) -> None:
        window_s = self._settings.window_s
        data = self._total, int(now * COMPARED_BLOCKS / window_s)
        if data == self._compared:
            return
        self._compared = data
        samples = {mode: self._state.samples(mode, now - window_s, COMPARED_SAMPLES) for mode in MODES}
        push, pull = (self._blocks(samples[mode]) for mode in (names.MODE_PUSH, names.MODE_PULL))
        self._metrics.compared(median_difference(push, pull), {mode: len(found) for mode, found in samples.items()})

    def _blocks(self, samples: list[Sample]) -> dict[int, list[float]]:
        """TTFTs by stretch of time; stretches lie at fixed times, so that a sample keeps its own."""
        blocks: dict[int, list[float]] = {}
        for sample in samples:
            blocks.setdefault(int(sample.ended_s * COMPARED_BLOCKS / self._settings.window_s), []).append(sample.ttft_s)
        return blocks


def _entry(judged: Judged, is_new: bool) -> Entry:
    ended_s = None if judged.ended_ns is None else judged.ended_ns / 1e9
    if judged.path is None or not is_new:
        return Entry(judged.trace_id, ended_s)
    return Entry(judged.trace_id, ended_s, judged.mode, judged.path.ttft_ns / 1e9)
