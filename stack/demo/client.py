"""The experiment's measuring client, one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from stack.experiment.client import Answer, RequestError, completion_body, new_session, stream

__all__ = ["Answer", "RequestError", "stream_completion"]

TIMEOUT_S = 180.0
OUTPUT_TOKENS = 16


def stream_completion(url: str, model: str, prompt: str, headers: Mapping[str, str] | None = None) -> Answer:
    """Sends one greedy streaming completion of 16 tokens; raises :class:`RequestError`.

    The trace id is the client's own, so that it knows the trace of each request without asking anybody.
    """

    async def one() -> Answer:
        async with new_session(TIMEOUT_S) as session:
            return await stream(session, url, completion_body(model, prompt, OUTPUT_TOKENS), headers or {})

    return asyncio.run(one())
