"""Shared memory in a real Redis."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from redis.asyncio import Redis

from stack.router.conversations import shared_memory
from stack.router.conversations.entry import Entry
from stack.router.conversations.shared_memory import PREFIX, SharedMemory

ENTRY = Entry("D0", "ab" * 16, 100, 7, "cd" * 16, 475.0)
KEY = bytes(range(16))


@pytest.fixture
async def server(redis_url):
    async with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def routers(redis_url):
    """The memories of two router processes."""
    both = [SharedMemory(redis_url, 960.0, 5.0) for _ in range(2)]
    yield both
    for memory in both:
        await memory.stop()


async def test_what_one_router_stores_another_takes_once(server, routers):
    await routers[0].put(KEY, ENTRY, 0.5)
    entry, age_s = await routers[1].take(KEY)
    assert entry == ENTRY
    assert 0.5 <= age_s < 5
    assert await routers[0].take(KEY) is None
    assert await server.keys() == []


async def test_of_many_at_once_one_gets_it(server, routers):
    await routers[0].put(KEY, ENTRY, 0)
    taken = await asyncio.gather(*(routers[i % 2].take(KEY) for i in range(20)))
    assert sum(each is not None for each in taken) == 1
    assert routers[0].errors == routers[1].errors == 0


async def test_the_age_is_what_the_server_says(server, routers):
    await routers[0].put(KEY, ENTRY, 0.5)
    assert 959_000 < await server.pttl(PREFIX + KEY.hex().encode()) <= 960_000
    await server.pexpire(PREFIX + KEY.hex().encode(), 960_000 - 476_000)  # as 476 s later
    _, age_s = await routers[1].take(KEY)
    assert 476.5 <= age_s < 480


async def test_what_another_version_stored_is_a_miss(server, routers):
    for value in (b"nonsense", b"[1]", b'[0.5, "[]"]', b'[null, "x"]'):
        routers[0]._paused_until = 0
        await server.set(PREFIX + KEY.hex().encode(), value, px=1000)
        assert await routers[0].take(KEY) is None
    assert routers[0].errors == 4


async def test_a_server_that_is_not_there_makes_turns_miss_and_is_left_alone_for_a_moment(caplog, monkeypatch):
    with tempfile.TemporaryDirectory() as folder:
        memory = SharedMemory(f"unix://{Path(folder, 'nothing.sock')}", 960.0, 5.0)
        assert await memory.take(KEY) is None
        assert await memory.take(KEY) is None
        await memory.put(KEY, ENTRY, 0)
        assert memory.errors == 1
        monkeypatch.setattr(shared_memory, "PAUSE_S", 0)
        memory._paused_until = 0
        await memory.put(KEY, ENTRY, 0)
        await memory.put(KEY, ENTRY, 0)
        assert memory.errors == 3
        await memory.stop()
    assert "turns miss meanwhile" in caplog.text


async def test_a_server_that_does_not_answer_costs_no_more_than_its_time():
    async def silent(reader, writer):
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    memory = SharedMemory(f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}", 960.0, 0.05)
    started = asyncio.get_running_loop().time()
    assert await memory.take(KEY) is None
    assert asyncio.get_running_loop().time() - started < 2
    assert memory.errors == 1
    await memory.stop()
    listener.close()
    await listener.wait_closed()


async def test_a_connection_from_before_a_restart_is_replaced(server, routers):
    await routers[0].put(KEY, ENTRY, 0)
    await server.client_kill_filter(skipme=True)
    assert await routers[0].take(KEY) is not None
    assert routers[0].errors == 0


def test_a_url_that_makes_no_sense_is_told_at_once():
    with pytest.raises(ValueError, match="scheme"):
        SharedMemory("valkey//h", 960.0, 0.25)
