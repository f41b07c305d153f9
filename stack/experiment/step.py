"""Makes an idle engine step once.

An engine looks for notifications only when it steps. Until then P holds the blocks of the last pull, and that request's
trace lacks the span which ends with them; in reuse the same holds for D and what P has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp

from connector import names
from stack.experiment.client import completion_body, new_session, stream

PROMPT = "One more step."
TIMEOUT_S = 180.0


async def step(session: aiohttp.ClientSession, url: str, model: str, headers: Mapping[str, str] | None = None) -> None:
    """Sends one short request that counts in no figure, to an engine or through a router; raises ``RequestError``."""
    sent = {names.HEADER_UNCOUNTED: names.UNCOUNTED_STEP, **(headers or {})}
    await stream(session, url, completion_body(model, PROMPT, 1), sent)


def step_engine(url: str, model: str) -> None:
    """As :func:`step`, for callers without an event loop."""

    async def one() -> None:
        async with new_session(TIMEOUT_S) as session:
            await step(session, url, model)

    asyncio.run(one())
