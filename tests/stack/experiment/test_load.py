"""The load is open-loop: what is due is sent, whatever became of the requests before it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from connector import names
from stack.experiment.client import new_session
from stack.experiment.load import Load, Row, offer, row_from
from stack.experiment.plan import Changes, make_plan
from stack.experiment.presets import DEMO
from stack.experiment.prompts import Prompt
from stack.router.settings import DECODE
from stack.router.stub_engine import Reply, StubEngine

BLOCK = make_plan(DEMO, Changes(requests=3)).blocks[-1]
MS = 1_000_000


@pytest.fixture
async def engine() -> AsyncIterator[StubEngine]:
    async with StubEngine(DECODE, "D0") as stub:
        yield stub


def load(engine: StubEngine, due_ms=(0, 1, 2)) -> Load:
    prompts = [Prompt(number, f"prompt {number}", 4) for number in range(len(due_ms))]
    return Load(BLOCK, 2, f"http://127.0.0.1:{engine.port}", "m", prompts, [at * MS for at in due_ms])


async def run(engine: StubEngine, **more) -> list[Row]:
    async with new_session(10) as session:
        return await offer(session, load(engine, **more), lambda row: None)


async def test_requests_do_not_wait_for_each_other(engine):
    hold = asyncio.Event()
    engine.reply = Reply(hold=hold)
    running = asyncio.create_task(run(engine))
    await engine.until(lambda stub: stub.in_flight == 3)
    hold.set()
    rows = await running
    assert [row.error for row in rows] == [""] * 3


async def test_nothing_is_sent_before_it_is_due(engine):
    rows = await run(engine, due_ms=(0, 20, 40))
    assert [row.scheduled_ns for row in rows] == [0, 20 * MS, 40 * MS]
    assert all(row.lag_ns >= 0 for row in rows)


async def test_what_a_row_holds(engine):
    rows = []
    async with new_session(10) as session:
        returned = await offer(session, load(engine), rows.append)
    assert sorted(rows, key=lambda r: r.index) == returned
    row = returned[1]
    assert (row.block, row.attempt, row.index, row.prompt, row.mode) == (BLOCK.index, 2, 1, 1, BLOCK.mode)
    assert (row.status, row.prompt_tokens, row.output_tokens, len(row.gaps_ns)) == (200, 7, 4, 3)
    assert row.ttft_ns + sum(row.gaps_ns) == row.total_ns
    assert row_from(json.loads(json.dumps(row.document()))) == row


async def test_what_is_sent(engine):
    await run(engine)
    assert [r.headers[names.HEADER_MODE] for r in engine.requests] == [BLOCK.mode] * 3
    bodies = sorted((r.body for r in engine.requests), key=lambda body: body["prompt"])
    assert [body["cache_salt"] for body in bodies] == [f"{BLOCK.index:03}-2-{i}" for i in range(3)]
    assert {(b["max_tokens"], b["temperature"], b["stream"]) for b in bodies} == {(4, 0, True)}


async def test_only_warm_up_is_a_request_that_no_figure_counts(engine):
    blocks = make_plan(DEMO, Changes(requests=3)).blocks
    for block in (blocks[0], blocks[-1]):
        engine.requests.clear()
        async with new_session(10) as session:
            await offer(session, replace(load(engine), block=block), lambda row: None)
        expected = names.UNCOUNTED_WARM_UP if block.warm_up else None
        assert [r.headers.get(names.HEADER_UNCOUNTED) for r in engine.requests] == [expected] * 3
    assert blocks[0].warm_up


async def test_failures_are_rows(engine):
    replies = iter([Reply(), Reply(status=503), Reply(cut_at=2)])
    engine.choose_reply = lambda _: next(replies)
    rows = await run(engine, due_ms=(0, 20, 40))
    assert [(r.error, r.status) for r in rows][:2] == [("", 200), ("http_503", 503)]
    assert rows[2].error == "broken_answer"
    assert [r.ttft_ns is None for r in rows] == [False, True, True]


async def test_the_routers_word_on_trace_and_fall_back(engine):
    engine.reply = Reply(raw=[b'data: {"choices": [{"text": "a"}]}\n\n', b"data: [DONE]\n\n"])
    rows = await run(engine)
    assert all(len(row.trace_id) == 32 and not row.fallback for row in rows)  # the client's own id without a router


async def test_an_interruption_leaves_no_request_running(engine):
    engine.reply = Reply(hold=asyncio.Event())
    running = asyncio.create_task(run(engine))
    await engine.until(lambda stub: stub.in_flight == 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await engine.until(lambda stub: stub.in_flight == 0)
    assert engine.aborted == 3
