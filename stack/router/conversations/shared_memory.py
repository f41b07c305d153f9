"""The table in Redis or Valkey, for several router processes.

Clocks of two routers cannot be compared, so that an entry's age is what the server's own clock says: the time to
live that it was stored with, less what is left of it. Taking is one transaction: of two routers one gets the entry.
A server that fails makes turns miss and nothing else; for a moment it is then not asked, so that not every request
waits for it. Needs the ``redis`` package (extra ``redis``).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from stack.router.conversations.entry import Entry

PREFIX = b"kvpath:reuse:"
PAUSE_S = 1.0  # after a failure
_log = logging.getLogger(__name__)


class SharedMemory:
    """Entries on the server at ``url``; they vanish there after ``retain_s`` seconds. ``errors`` counts failures."""

    def __init__(self, url: str, retain_s: float, timeout_s: float) -> None:
        """Raises ``ValueError`` for a URL that makes no sense. Connects at first use."""
        self._retain_ms = round(retain_s * 1000)
        self._timeout_s = timeout_s
        self._paused_until = 0.0
        self.errors = 0
        # One retry, at once: a connection kept from before a restart of the server breaks at its first use.
        self._server = Redis.from_url(url, socket_timeout=timeout_s, retry=Retry(NoBackoff(), 1))

    async def put(self, key: bytes, entry: Entry, age_s: float) -> None:
        if self._paused():
            return
        value = json.dumps([age_s, entry.encode().decode()]).encode()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._server.set(PREFIX + key.hex().encode(), value, px=self._retain_ms)
        except (RedisError, OSError, TimeoutError) as error:
            self._failed(error)

    async def take(self, key: bytes) -> tuple[Entry, float] | None:
        if self._paused():
            return None
        name = PREFIX + key.hex().encode()
        try:
            async with asyncio.timeout(self._timeout_s), self._server.pipeline(transaction=True) as transaction:
                transaction.pttl(name)
                transaction.getdel(name)
                left_ms, value = await transaction.execute()
        except (RedisError, OSError, TimeoutError) as error:
            self._failed(error)
            return None
        if value is None:
            return None
        try:
            age_s, encoded = json.loads(value)
            entry = Entry.decode_from(encoded)
            return entry, float(age_s) + (self._retain_ms - left_ms) / 1000
        except (ValueError, TypeError) as error:  # another version's
            self._failed(error)
            return None

    async def stop(self) -> None:
        await self._server.aclose()

    def _paused(self) -> bool:
        return time.monotonic() < self._paused_until

    def _failed(self, error: Exception) -> None:
        if not self._paused():
            _log.warning("shared memory of conversations: %s; turns miss meanwhile", type(error).__name__)
        self.errors += 1
        self._paused_until = time.monotonic() + PAUSE_S
