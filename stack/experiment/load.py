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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp

from connector import names
from stack.experiment.client import Answer, RequestError, completion_body, stream
from stack.experiment.plan import Block
from stack.experiment.prompts import Prompt

REQUEST_TIMEOUT_S = 900.0
FAREWELL = "Good-bye."


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
    turn: int = 1  # of a conversation

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
    """What a block sends where: ``due_ns[i]`` after the start for ``prompts[i]``.

    A prompt with further turns is a conversation: each is due ``gap_ns`` after the answer before has ended.
    """

    block: Block
    attempt: int
    url: str
    model: str
    prompts: Sequence[Prompt]
    due_ns: Sequence[int]
    gap_ns: int = 0
    run: str = ""  # begins every salt and conversation id: an engine may remember another run of the same plan

    def name(self, number: int) -> str:
        """Equally long for every block, or nearly so."""
        return f"{self.run}{self.block.index:03}-{self.attempt}-{number}"


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a block; ``number`` is its prompt's, ``index`` its own. ``salt`` keeps prefix caches apart."""

    number: int
    index: int
    turn: int
    text: str
    output_tokens: int
    due_ns: int
    salt: str | None
    headers: Mapping[str, str] = field(default_factory=dict)


async def offer(session: aiohttp.ClientSession, load: Load, on_row: Callable[[Row], None]) -> list[Row]:
    """Sends the whole block and waits for every answer; ``on_row`` gets each row when its request has ended."""
    start = time.perf_counter_ns()

    async def one(number: int) -> list[Row]:
        if load.prompts[number].later:
            return await converse(session, load, number, start, on_row)
        row, _ = await send(session, load, _single(load, number), start)
        on_row(row)
        return [row]

    tasks: list[asyncio.Task[list[Row]]] = []
    try:
        for index, due in enumerate(load.due_ns):
            wait_ns = start + due - time.perf_counter_ns()
            if wait_ns > 0:
                await asyncio.sleep(wait_ns / 1e9)
            tasks.append(asyncio.create_task(one(index)))
        return [row for rows in await asyncio.gather(*tasks) for row in rows]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _single(load: Load, number: int) -> Request:
    prompt = load.prompts[number]
    # Both blocks of a pair send the same text; without a salt the second would find it in P's prefix cache.
    return Request(prompt.number, number, 1, prompt.text, prompt.output_tokens, load.due_ns[number], load.name(number))


async def send(session: aiohttp.ClientSession, load: Load, request: Request, start: int) -> tuple[Row, str]:
    """Sends one request now; returns its row and the text of the answer."""
    block = load.block
    body = completion_body(load.model, request.text, request.output_tokens)
    if request.salt is not None:
        body["cache_salt"] = request.salt
    headers = {names.HEADER_MODE: block.mode, **request.headers}
    if block.warm_up:
        headers[names.HEADER_UNCOUNTED] = names.UNCOUNTED_WARM_UP
    sent = time.perf_counter_ns()

    def row(trace_id: str, status: int, **more: Any) -> Row:
        return Row(
            block=block.index,
            attempt=load.attempt,
            index=request.index,
            prompt=request.number,
            mode=block.mode,
            scheduled_ns=request.due_ns,
            sent_ns=sent - start,
            trace_id=trace_id,
            status=status,
            turn=request.turn,
            **more,
        )

    try:
        answer = await stream(session, load.url, body, headers)
    except RequestError as error:
        return row(error.trace_id, error.status, error=error.kind, message=str(error)), ""
    return row(_trace_id(answer), 200, **_measured(answer)), answer.text


async def converse(
    session: aiohttp.ClientSession, load: Load, number: int, start: int, on_row: Callable[[Row], None]
) -> list[Row]:
    """Holds one conversation, each turn with everything that was said before; it ends early with a turn that fails.

    It begins with its name, so that no engine finds another arm's equal conversation in its prefix cache. A cache salt
    would do that too, but D keeps nothing of a salted request: equal tokens are then not equal KV.

    At the end it says something that goes on from nothing, and is not counted: D then frees what it kept of the last
    turn at once, instead of holding it through the next blocks. In both arms, so that they stay alike.
    """
    prompt, name = load.prompts[number], load.name(number)
    headers = {names.HEADER_CONVERSATION: f"kvpath-ab-{name}"}
    text, due_ns = f"{name}\n{prompt.text}", load.due_ns[number]
    rows: list[Row] = []
    for turn, new in enumerate((*prompt.later, ""), 1):
        index = number * (len(prompt.later) + 1) + turn - 1
        request = Request(prompt.number, index, turn, text, prompt.output_tokens, due_ns, None, headers)
        row, answer = await send(session, load, request, start)
        rows.append(row)
        on_row(row)
        if row.error:
            break
        text += answer + new
        due_ns = time.perf_counter_ns() - start + load.gap_ns
        if new:
            await asyncio.sleep(load.gap_ns / 1e9)
    with suppress(RequestError):
        farewell = completion_body(load.model, FAREWELL, 1)
        last = {names.HEADER_MODE: load.block.mode, names.HEADER_UNCOUNTED: names.UNCOUNTED_FAREWELL, **headers}
        await stream(session, load.url, farewell, last)
    return rows


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
