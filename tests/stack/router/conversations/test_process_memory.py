from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.router.conversations.entry import Entry
from stack.router.conversations.process_memory import ProcessMemory


def entry(number):
    return Entry("D0", f"{number:032x}", 100, 7, "cd" * 16, 475.0)


def key(number):
    return number.to_bytes(16, "big")


@pytest.fixture
def memory(clock):
    return ProcessMemory(3, 960.0, clock)


async def test_an_entry_is_taken_once_with_its_age(memory, clock):
    await memory.put(key(1), entry(1), 0.25)
    clock.seconds += 10
    assert await memory.take(key(2)) is None
    assert await memory.take(key(1)) == (entry(1), 10.25)
    assert await memory.take(key(1)) is None


async def test_a_later_turn_replaces_an_earlier(memory, clock):
    await memory.put(key(1), entry(1), 0)
    clock.seconds += 10
    await memory.put(key(1), entry(2), 0)
    assert len(memory) == 1
    assert await memory.take(key(1)) == (entry(2), 0)


async def test_a_full_table_gives_up_its_oldest(memory):
    for number in (1, 2, 3):
        await memory.put(key(number), entry(number), 0)
    await memory.put(key(1), entry(1), 0)  # no longer the oldest
    await memory.put(key(4), entry(4), 0)
    assert (len(memory), memory.evicted) == (3, 1)
    assert await memory.take(key(2)) is None
    assert await memory.take(key(1)) is not None


async def test_what_nobody_comes_back_for_goes_in_time(memory, clock):
    await memory.put(key(1), entry(1), 0)
    clock.seconds += 500
    await memory.put(key(2), entry(2), 0)
    assert len(memory) == 2
    clock.seconds += 461
    await memory.put(key(3), entry(3), 0)
    assert (len(memory), memory.evicted) == (2, 0)
    assert await memory.take(key(1)) is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=40))
async def test_the_size_is_that_of_what_is_there(steps):
    memory = ProcessMemory(4, 960.0, lambda: 0.0)
    empty = memory.size
    for put, number in steps:
        if put:
            await memory.put(key(number), entry(number), 0)
        else:
            await memory.take(key(number))
        assert len(memory) <= 4
        assert (memory.size - empty > 100 * len(memory)) or not len(memory)
    for number in range(6):
        await memory.take(key(number))
    assert memory.size <= empty + 1000  # the table itself does not shrink
