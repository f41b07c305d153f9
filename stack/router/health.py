"""Keeps the pool's idea of each engine's health true, with one probe loop an engine.

A loop asks ``GET /health`` every interval, and at once when a request had trouble. A restarted engine on the same
port is thus found again without anybody's help. An engine that refuses the connection is down at once; one that is
slow to answer is likely busy, and is condemned only after several misses in a row.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from stack.router.errors import DeadlineError, RouterError
from stack.router.pool import Engine, EnginePool
from stack.router.upstream import Upstream

HEALTH_PATH = "/health"
MISSES_TO_CONDEMN = 3


async def probe(upstream: Upstream, engine: Engine) -> None:
    """Asks one engine once and notes the answer."""
    engine.recheck.clear()
    try:
        status, _ = await upstream.get(engine, HEALTH_PATH)
    except DeadlineError as error:
        engine.missed_probes += 1
        if engine.missed_probes >= MISSES_TO_CONDEMN:
            engine.seen_down(error.message)
    except RouterError as error:
        engine.seen_down(error.message)
    else:
        engine.missed_probes = 0
        if status == 200:
            engine.seen_up()
        else:
            engine.seen_down(f"{HEALTH_PATH} answered {status}")
    engine.recheck.clear()  # what this probe itself found needs no further one


class HealthWatch:
    """The probe loops. :meth:`start` returns after every engine was asked once."""

    def __init__(self, upstream: Upstream, pool: EnginePool, interval_s: float) -> None:
        self._upstream = upstream
        self._pool = pool
        self._interval_s = interval_s
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await asyncio.gather(*(probe(self._upstream, engine) for engine in self._pool.engines))
        self._loops = [asyncio.create_task(self._watch(engine)) for engine in self._pool.engines]

    async def stop(self) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    async def _watch(self, engine: Engine) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(engine.recheck.wait(), self._interval_s)
            await probe(self._upstream, engine)
