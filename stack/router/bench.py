"""Measures what the router adds: time to the first token, and SSE chunks through one process. No model, no GPU.

Stub engines and the router run in processes of their own; the load comes from this one. Spans are made and exported,
to a stub. TTFT is taken in turns, one request straight to the engine (pull: to P, then to D) and one through the
router, so that a slow moment of the machine hits both. Chunks are offered at a fixed rate a stream, not all at once:
else the kernel would merge them, and what is counted are the chunks written to clients, not the events in them. In
reuse each client holds one conversation, so that a request also pays for asking D what it keeps of the turn before.
``python -m stack.router.bench`` prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from connector import names
from stack.router.bodies import COMPLETIONS_PATH, CONVERSATION
from stack.router.conversations import bench as conversations_bench
from stack.router.settings import DECODE, PREFILL, ROUTED_TRANSFERS, Role
from stack.router.stub_engine import INTERVAL, LAST_TEXT

STREAMS = 64
PROMPT = "natural text " * 40
_FIRST_EVENT = b"data: "
_CHUNK_END = b"\n\n\r\n"
_END = b"0\r\n\r\n"


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    # In a group of its own: a terminal's Ctrl-C would end the stubs before the router has sent them its last spans.
    argv = [sys.executable, "-m", *arguments]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, process_group=0)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def _stub(role: Role, engine_id: str) -> Iterator[int]:
    with _process("stack.router.stub_engine", "--role", role, "--engine-id", engine_id) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@contextmanager
def _router(prefill_port: int, decode_port: int) -> Iterator[tuple[int, int]]:
    """Yields the router's port and process id."""
    side = {"side_channel_host": "127.0.0.1", "side_channel_port": 5600, "modes": ROUTED_TRANSFERS}
    decode_url = f"http://127.0.0.1:{decode_port}"
    engines: list[dict[str, Any]] = [
        {"url": f"http://127.0.0.1:{prefill_port}", "role": PREFILL, "engine_id": "P", **side},
        {"url": decode_url, "role": DECODE, "engine_id": "D", "modes": ROUTED_TRANSFERS, "kept_url": decode_url},
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "router.json")
        settings = {"engines": engines, "allow_mode_header": True, "otlp_endpoint": engines[0]["url"]}
        config.write_text(json.dumps(settings))
        with _process("stack.router", "--config", str(config), "--port", "0") as process:
            assert process.stdout is not None
            yield int(process.stdout.readline().rsplit(":", 1)[1]), process.pid


class _Connection:
    """A client connection that is as thin as it gets: it must not be what is measured."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, port: int) -> _Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def close(self) -> None:
        self._writer.close()

    async def stream(
        self, mode: str | None, tokens: int, interval_s: float = 0.0, more: Mapping[str, str] | None = None
    ) -> tuple[float, int, int]:
        """Returns seconds to the first event, the number of events, and in how many HTTP chunks they came."""
        body = {"prompt": PROMPT, "stream": True, "max_tokens": tokens, INTERVAL: interval_s, **(more or {})}
        started = time.perf_counter()
        self._send(body, mode)
        data = await self._reader.readuntil(_FIRST_EVENT)
        first = time.perf_counter() - started
        events, chunks, tail = 0, 0, data
        while not tail.endswith(_END):
            data = await self._reader.read(65536)
            if not data:
                raise ConnectionError("the stream ended early")
            window = tail + data
            events += window.count(b"\n\n") - tail.count(b"\n\n")
            chunks += window.count(_CHUNK_END) - tail.count(_CHUNK_END)
            tail = window[-len(_END) :]
        return first, events, chunks

    async def whole(self) -> float:
        """Sends what P is sent in a pull, and returns the seconds to its answer."""
        started = time.perf_counter()
        self._send({"prompt": PROMPT, "stream": False, "max_tokens": 1}, None)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await self._reader.readexactly(length)
        return time.perf_counter() - started

    def _send(self, body: dict[str, Any], mode: str | None) -> None:
        data = json.dumps(body).encode()
        chosen = f"{names.HEADER_MODE}: {mode}\r\n" if mode else ""
        head = f"POST {COMPLETIONS_PATH} HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(data)}\r\n{chosen}\r\n"
        self._writer.write(head.encode() + data)


async def _added_ttft(ports: tuple[int, int, int], mode: str, concurrency: int, requests: int) -> dict[str, float]:
    """Returns the TTFT straight and through the router, and their difference, in milliseconds at p50 and p99."""
    prefill_port, decode_port, router_port = ports
    straight: list[float] = []
    routed: list[float] = []

    async def client(number: int) -> None:
        connections = [await _Connection.to(port) for port in (prefill_port, decode_port, router_port)]
        to_prefill, to_decode, to_router = connections
        for turn in range(max(1, requests // concurrency)):
            before = await to_prefill.whole() if mode in (names.MODE_PULL, names.MODE_REUSE) else 0.0
            straight.append(before + (await to_decode.stream(None, 1))[0])
            history = {CONVERSATION: f"{concurrency}/{number}", "prompt": PROMPT + LAST_TEXT * turn}
            routed.append((await to_router.stream(mode, 1, more=history))[0])
        for connection in connections:
            connection.close()

    await asyncio.gather(*(client(number) for number in range(concurrency)))
    figures: dict[str, float] = {}
    for name, quantile in (("p50", 0.5), ("p99", 0.99)):
        alone, through = (_quantile(values, quantile) * 1e3 for values in (straight, routed))
        figures |= {f"engine_{name}_ms": alone, f"router_{name}_ms": through, f"added_{name}_ms": through - alone}
    return {key: round(value, 3) for key, value in figures.items()}


def _quantile(values: list[float], quantile: float) -> float:
    ordered = sorted(values)
    return statistics.median(ordered) if quantile == 0.5 else ordered[int(quantile * (len(ordered) - 1))]


async def _throughput(router_port: int, router_pid: int, offered: float, seconds: float) -> dict[str, float]:
    """Offers ``offered`` chunks/s over all streams; returns what came through and the router's CPU time a chunk."""
    connections = [await _Connection.to(router_port) for _ in range(STREAMS)]
    each = offered / STREAMS
    cpu_before, started = _cpu_seconds(router_pid), time.perf_counter()
    ends = await asyncio.gather(
        *(connection.stream(names.MODE_PLAIN, int(each * seconds), 1 / each) for connection in connections)
    )
    took, cpu = time.perf_counter() - started, _cpu_seconds(router_pid) - cpu_before
    for connection in connections:
        connection.close()
    events, chunks = sum(end[1] for end in ends), sum(end[2] for end in ends)
    return {
        "offered_per_s": offered,
        "events_per_s": round(events / took),
        "chunks_per_s": round(chunks / took),
        "router_cpu_us_per_chunk": round(cpu / chunks * 1e6, 1),
        "router_cpu_share": round(cpu / took, 2),
    }


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(requests: int = 400, seconds: float = 2.0, offered: tuple[float, ...] = (4000, 8000, 12000, 16000)) -> dict:
    """Returns every figure: ``ttft`` by mode and concurrency, ``throughput`` by offered rate and the best of it, and
    what ``reuse`` remembers costs.

    ``requests`` a TTFT figure, ``seconds`` a throughput figure.
    """
    with _stub(PREFILL, "P") as prefill, _stub(DECODE, "D") as decode, _router(prefill, decode) as (port, pid):
        ports = (prefill, decode, port)
        ttft = {
            f"{mode}_concurrency_{concurrency}": asyncio.run(_added_ttft(ports, mode, concurrency, requests))
            for mode in (*ROUTED_TRANSFERS, names.MODE_PLAIN)
            for concurrency in (1, STREAMS)
        }
        rates = [asyncio.run(_throughput(port, pid, rate, seconds)) for rate in offered]
    best = max(rate["chunks_per_s"] for rate in rates)
    reuse = conversations_bench.measure()
    return {"ttft": ttft, "throughput": rates, "sse_chunks_per_s": best, "streams": STREAMS, "reuse": reuse}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
