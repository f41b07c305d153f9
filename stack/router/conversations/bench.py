"""Measures what remembering conversations costs: a lookup in process and through Redis, and the memory of the table.

The lookup is the router's own part: taking the entry, the digest of the history, D's word read and checked. D's word
comes at once here; what it takes over HTTP is in the TTFT that ``stack.router.bench`` measures for mode reuse. Redis
is a server of this machine, on a socket; without the package ``redis-server`` or ``redis`` its figures are ``None``.
``python -m stack.router.conversations.bench`` prints JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import time
import tracemalloc
from collections.abc import Callable
from importlib.util import find_spec
from shutil import which
from typing import Any

from stack.router.bodies import CHAT_PATH
from stack.router.conversations.answer import AnswerText
from stack.router.conversations.entry import Entry
from stack.router.conversations.history import History, history_of
from stack.router.conversations.memory import Memory
from stack.router.conversations.process_memory import ProcessMemory
from stack.router.conversations.redis_server import PROGRAM, redis_server
from stack.router.conversations.turns import Conversations, Limits, Turn
from stack.router.settings import DECODE, EngineSettings
from stack.router.stub_kept import StubKept

CONVERSATIONS = 100_000
MESSAGES, MESSAGE_CHARACTERS = 20, 1600  # a history of about 8,000 tokens
RETAIN_S = 960.0
_CHUNK = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'


def measure(lookups: int = 500, conversations: int = CONVERSATIONS) -> dict[str, Any]:
    """Returns every figure; times in microseconds, sizes in bytes."""
    figures: dict[str, Any] = {"conversations": conversations}
    figures |= asyncio.run(_table(conversations))
    in_process = ProcessMemory(conversations, RETAIN_S, time.monotonic)
    figures |= asyncio.run(_lookups("process", lambda: in_process, lookups))
    figures |= {"lookup_redis_p50_us": None, "lookup_redis_p99_us": None}
    if which(PROGRAM) and find_spec("redis"):
        with redis_server() as url:
            figures |= asyncio.run(_lookups("redis", lambda: _shared(url), lookups))
    figures["digest_of_history_us"] = _microseconds(_history, 50)
    figures["answer_us_per_chunk"] = _microseconds(_answer(), 5000)
    return figures


async def _table(conversations: int) -> dict[str, Any]:
    """Fills a table; what it says that it takes stands beside what the interpreter allocated."""
    gc.collect()
    tracemalloc.start()
    memory = ProcessMemory(conversations, RETAIN_S, time.monotonic)
    for _ in range(conversations):
        await memory.put(os.urandom(16), _entry(os.urandom(16).hex()), 0.0)
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"table_bytes": memory.size, "table_allocated_bytes": allocated}


async def _lookups(name: str, make: Callable[[], Memory], lookups: int) -> dict[str, float]:
    memory = make()
    said = json.dumps({"params": StubKept("D").params("r"), "tokens": 100, "expires_in_s": 480.0}).encode()

    async def fetch(url: str, timeout_s: float) -> tuple[int, bytes]:
        return 200, said

    engine = EngineSettings(url="http://d", role=DECODE, engine_id="D", kept_url="http://d")
    limits = Limits(480.0, 5.0, 64, 5.0)
    table = Conversations(memory, [engine], fetch, limits, time.monotonic, lambda _: None)
    history = _history()
    digest = history.digest(history.length)
    assert digest is not None
    times = []
    for number in range(lookups):
        key = number.to_bytes(16, "big")
        await memory.put(key, Entry("D", "r" * 32, 100, history.length, digest.hex(), 475.0), 0.0)
        turn = Turn.begin(key, history, chat=True)
        started = time.perf_counter_ns()
        found = await table.look_up(turn)
        times.append((time.perf_counter_ns() - started) / 1000)
        assert found.params is not None, found.outcome
    await table.stop()
    times.sort()
    p50, p99 = statistics.median(times), times[int(0.99 * (len(times) - 1))]
    return {f"lookup_{name}_p50_us": round(p50, 1), f"lookup_{name}_p99_us": round(p99, 1)}


def _entry(request_id: str) -> Entry:
    return Entry("decode-0", request_id, 8000, 21, "ab" * 16, 475.0)


def _history() -> History:
    messages = [{"role": "user", "content": f"{i} " + "text " * (MESSAGE_CHARACTERS // 5)} for i in range(MESSAGES)]
    history = history_of(CHAT_PATH, {"model": "m", "messages": messages})
    assert history is not None
    return history


def _answer() -> Callable[[], object]:
    answer = AnswerText(_history(), chat=True)
    return lambda: answer.follow(_CHUNK)


def _microseconds(work: Callable[[], object], times: int) -> float:
    started = time.perf_counter_ns()
    for _ in range(times):
        work()
    return round((time.perf_counter_ns() - started) / times / 1000, 2)


def _shared(url: str) -> Memory:
    from stack.router.conversations.shared_memory import SharedMemory

    return SharedMemory(url, RETAIN_S, 5.0)


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
