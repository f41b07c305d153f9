"""Offers one block of requests, open-loop: each is sent at its own instant, whatever became of those before it.

Why not vLLM's ``vllm.benchmarks.serve``? Its source was read (0.32.0), and both clients were run in turns against one
stub engine, 720 requests each at 40 requests/s on two busy cores: TTFT p50 1.26 ms (vLLM) and 1.01 ms (this), time
between tokens p50 9.98 ms in both (the stub's interval is 10 ms), 2.1 and 2.2 ms of CPU a request. So both measure the
same, and vLLM's is open-loop as well. What it lacks for a comparison that can be believed:

- Its TTFT starts when a request's task gets to run; how late that was is not recorded. Here the scheduled and the real
  instant stand in every row, and the lag is part of the report (in that run: p50 0.7 ms, p99 11 ms).
- It takes the arrivals from the wall clock, and stretches them so that the last is due at exactly ``n / rate``, which
  no Poisson process does.
- It stamps a completion's token after parsing its JSON; here it is the instant at which its bytes were read.
- It keeps neither trace ids nor the status of errors, so requests cannot be joined with their traces.
- It does not pair prompts between runs, and one run has one mode: each block would pay for a process whose import of
  vLLM alone (36 s in that run) takes longer than the block.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from connector import names
from stack.experiment.client import Answer, RequestError, completion_body, stream
from stack.experiment.plan import Block
from stack.experiment.prompts import Prompt

REQUEST_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Row:
    """One request as its client saw it. Nanoseconds; ``scheduled_ns`` and ``sent_ns`` after the block's start.

    ``error`` is "" or a kind to count by; times of a failed request are ``None``. ``fallback`` says why the router
    served it without a transfer.
    """

    block: int
    attempt: int
    index: int
    prompt: int
    mode: str
    scheduled_ns: int
    sent_ns: int
    trace_id: str
    status: int
    error: str = ""
    message: str = ""
    fallback: str = ""
    ttft_ns: int | None = None
    tpot_ns: float | None = None
    total_ns: int | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    gaps_ns: tuple[int, ...] = ()

    @property
    def lag_ns(self) -> int:
        """How much later than scheduled the request was sent: the client's own fault."""
        return self.sent_ns - self.scheduled_ns

    def document(self) -> dict[str, Any]:
        return asdict(self) | {"gaps_ns": list(self.gaps_ns)}


def row_from(document: dict[str, Any]) -> Row:
    return Row(**document | {"gaps_ns": tuple(document["gaps_ns"])})


@dataclass(frozen=True, slots=True)
class Load:
    """What a block sends where: ``due_ns[i]`` after the start for ``prompts[i]``."""

    block: Block
    attempt: int
    url: str
    model: str
    prompts: Sequence[Prompt]
    due_ns: Sequence[int]


async def offer(session: aiohttp.ClientSession, load: Load, on_row: Callable[[Row], None]) -> list[Row]:
    """Sends the whole block and waits for every answer; ``on_row`` gets each row when its request has ended."""
    start = time.perf_counter_ns()

    async def one(index: int) -> Row:
        row = await _send(session, load, index, start)
        on_row(row)
        return row

    tasks: list[asyncio.Task[Row]] = []
    try:
        for index, due in enumerate(load.due_ns):
            wait_ns = start + due - time.perf_counter_ns()
            if wait_ns > 0:
                await asyncio.sleep(wait_ns / 1e9)
            tasks.append(asyncio.create_task(one(index)))
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(session: aiohttp.ClientSession, load: Load, index: int, start: int) -> Row:
    prompt, block = load.prompts[index], load.block
    body = completion_body(load.model, prompt.text, prompt.output_tokens)
    # Both blocks of a pair send the same text; without a salt the second would find it in P's prefix cache.
    body["cache_salt"] = f"{block.index}-{load.attempt}-{index}"
    sent = time.perf_counter_ns()

    def row(trace_id: str, status: int, **more: Any) -> Row:
        return Row(
            block=block.index,
            attempt=load.attempt,
            index=index,
            prompt=prompt.number,
            mode=block.mode,
            scheduled_ns=load.due_ns[index],
            sent_ns=sent - start,
            trace_id=trace_id,
            status=status,
            **more,
        )

    try:
        answer = await stream(session, load.url, body, {names.HEADER_MODE: block.mode})
    except RequestError as error:
        return row(error.trace_id, error.status, error=error.kind, message=str(error))
    return row(_trace_id(answer), 200, **_measured(answer))


def _trace_id(answer: Answer) -> str:
    return answer.headers.get(names.HEADER_TRACE_ID, answer.trace_id)


def _measured(answer: Answer) -> dict[str, Any]:
    return {
        "fallback": answer.headers.get(names.HEADER_FALLBACK, ""),
        "ttft_ns": answer.ttft_ns,
        "tpot_ns": answer.tpot_ns,
        "total_ns": answer.duration_ns,
        "prompt_tokens": answer.prompt_tokens,
        "output_tokens": answer.output_tokens,
        "gaps_ns": answer.gaps_ns,
    }
