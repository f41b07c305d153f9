"""From one turn of a conversation to the next: remembers where D keeps its KV cache, and looks that up.

A turn is remembered off the client's path: the last byte was handed on, then D is asked what it keeps. The turn is
noted as ending before that byte goes out, so that a client that is quick with its next turn waits for D's word
instead of missing. A lookup takes the entry, whatever comes of it: of two turns at once one finds it. Between router
processes that share memory only the table is shared, not what is still being asked: there a quick next turn misses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from connector import names
from stack.router.conversations.answer import AnswerText
from stack.router.conversations.entry import Entry
from stack.router.conversations.history import History
from stack.router.conversations.kept import Fetch, Kept, ask, only_release
from stack.router.conversations.memory import Memory
from stack.router.params import Params
from stack.router.settings import EngineSettings

AFTER_TURN_TIMEOUT_S = 5.0  # for D's word when nobody waits for it
STOP_GRACE_S = 0.5
NOT_KEPT = "not_kept"  # D keeps nothing, or did not say

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Turn:
    """One request of a conversation, and the answer that it is getting. ``ending``: all of that has come."""

    key: bytes
    history: History
    answer: AnswerText
    ending: bool = False

    @classmethod
    def begin(cls, key: bytes, history: History, *, chat: bool) -> Turn:
        return cls(key, history, AnswerText(history, chat=chat))


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is known of the turn before. ``params`` is what P is told: to read on a hit, else at most to release."""

    outcome: str
    params: Params | None = None
    decode: str | None = None  # engine id
    tokens: int = 0
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """When an entry is used: younger than ``ttl_s - margin_s`` seconds, from ``min_tokens`` tokens on."""

    ttl_s: float
    margin_s: float
    min_tokens: int
    timeout_s: float  # for D's word while a client waits


class Conversations:
    """Remembers turns. On the event loop's thread; ``clock`` is monotonic, in seconds."""

    def __init__(
        self,
        memory: Memory,
        engines: Iterable[EngineSettings],
        fetch: Fetch,
        limits: Limits,
        clock: Callable[[], float],
        on_not_kept: Callable[[str], None],
    ) -> None:
        self._memory = memory
        self._kept_urls = {engine.engine_id: engine.kept_url for engine in engines}
        self._fetch = fetch
        self._limits = limits
        self._clock = clock
        self._on_not_kept = on_not_kept
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: dict[bytes, asyncio.Task[None]] = {}

    async def stop(self) -> None:
        """Gives what is still being asked a moment, for another router's sake, then gives it up."""
        tasks = list(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_GRACE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._memory.stop()

    def ended(self, turn: Turn, decode: str, request_id: str, body: bytes | None = None) -> None:
        """Begins to remember a turn whose last byte is about to go out; ``body`` of an answer not yet followed."""
        turn.ending = True
        task = asyncio.create_task(self._remember(turn, decode, request_id, body, self._clock()))
        self._tasks.add(task)
        self._ending[turn.key] = task  # of two turns that end together the later counts

        def forget(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            if self._ending.get(turn.key) is done:
                del self._ending[turn.key]
            if not done.cancelled() and (error := done.exception()) is not None:
                _log.error("a turn was not remembered", exc_info=error)

        task.add_done_callback(forget)

    async def _remember(self, turn: Turn, decode: str, request_id: str, body: bytes | None, ended_at: float) -> None:
        if body is not None and not turn.answer.whole(body):
            self._on_not_kept(turn.answer.problem or NOT_KEPT)
            return
        kept = await self._ask(decode, request_id, AFTER_TURN_TIMEOUT_S)
        if kept is None:
            self._on_not_kept(NOT_KEPT)
            return
        # D's remaining time was told at some instant after the turn ended, so that counting it from then is safe.
        valid_s = min(self._limits.ttl_s, kept.expires_in_s) - self._limits.margin_s
        length, digest = turn.answer.covered()
        entry = Entry(decode, request_id, kept.tokens, length, digest.hex(), valid_s)
        await self._memory.put(turn.key, entry, self._clock() - ended_at)

    async def look_up(self, turn: Turn) -> Lookup:
        """Takes what is remembered of the turn before this one, and asks D for it."""
        ending = self._ending.get(turn.key)
        if ending is not None:
            await asyncio.wait({ending}, timeout=self._limits.timeout_s)
        taken = await self._memory.take(turn.key)
        if taken is None:
            return Lookup(names.REUSE_MISS)
        entry, age_s = taken
        outcome = self._outcome(entry, age_s, turn.history)
        if outcome == names.REUSE_EXPIRED:
            return Lookup(outcome, None, entry.decode, entry.tokens, age_s)
        kept = await self._ask(entry.decode, entry.request_id, self._limits.timeout_s)
        params = None
        if kept is None:
            outcome = names.REUSE_GONE if outcome == names.REUSE_HIT else outcome
        elif kept.expires_in_s <= self._limits.margin_s:  # by D's own clock: whatever was reckoned here
            outcome = names.REUSE_EXPIRED
        else:
            params = kept.params if outcome == names.REUSE_HIT else only_release(kept.params)
        return Lookup(outcome, params, entry.decode, entry.tokens, age_s)

    def _outcome(self, entry: Entry, age_s: float, history: History) -> str:
        if age_s >= entry.valid_s:
            return names.REUSE_EXPIRED
        digest = history.digest(entry.length)
        if digest is None or digest.hex() != entry.digest:
            return names.REUSE_EDITED
        return names.REUSE_HIT if entry.tokens >= self._limits.min_tokens else names.REUSE_TOO_SHORT

    async def _ask(self, decode: str, request_id: str, timeout_s: float) -> Kept | None:
        kept_url = self._kept_urls.get(decode)
        return None if kept_url is None else await ask(self._fetch, kept_url, request_id, timeout_s)
