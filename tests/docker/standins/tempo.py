#!/opt/kvpath/bin/python
"""Tempo's command line around kvpath's trace store: OTLP on port 4318, Tempo's API on 3200."""

from __future__ import annotations

import asyncio
import sys
import urllib.request

API, OTLP = 3200, 4318


async def serve() -> int:
    store = await asyncio.create_subprocess_exec(
        *("/opt/kvpath/bin/kvpath", "store", "--host", "0.0.0.0", "--port", str(OTLP), "--path", "/var/tempo/traces.db")
    )
    async with await asyncio.start_server(forward, "0.0.0.0", API):
        return await store.wait()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        store_reader, store_writer = await asyncio.open_connection("127.0.0.1", OTLP)
    except OSError:
        writer.close()
        return
    await asyncio.gather(pipe(reader, store_writer), pipe(store_reader, writer))


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


if __name__ == "__main__":
    if sys.argv[1] == "-health":
        with urllib.request.urlopen(sys.argv[2].removeprefix("-health.url="), timeout=5) as answer:
            sys.exit(answer.status != 200)
    sys.exit(asyncio.run(serve()))
