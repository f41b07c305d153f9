"""HTTP to the engines: kept connections, raw bytes, and one safe retry.

An engine closes a connection that idled too long, and may do so just as a request is written to it. Such a request
was not served, so it is sent again, once and on a connection made for it, when all of this holds: the connection
had served before, not one byte of an answer came, and it broke at once. In any other case the engine may have begun
to work on the request, and the failure is the client's to see.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp

from connector.clock import now
from stack.router.errors import BrokenAnswerError, ConnectTimeoutError, DeadlineError, RouterError, UnreachableError
from stack.router.pool import Engine

RETRY_WINDOW_NS = 1_000_000_000  # a stale connection breaks within a round trip
_LARGE_BODY = 512 * 1024  # bytes; above, the body is written in pieces


@dataclass(slots=True)
class _Attempt:
    """Filled in by the client's trace hook."""

    started_ns: int
    reused: bool = False


class Answer:
    """An engine's response whose status is known and whose body is still to be read."""

    __slots__ = ("_engine", "_response", "content_type", "retry_after", "status")

    def __init__(self, engine: Engine, response: aiohttp.ClientResponse) -> None:
        self._engine = engine
        self._response = response
        self.status = response.status
        self.content_type = response.headers.get("content-type", "")
        self.retry_after = response.headers.get("retry-after")

    async def chunk(self) -> bytes:
        """Returns the next bytes as they came; ``b""`` at the end. Raises ``RouterError`` when it breaks."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise _translated(error, self._engine) from error

    async def whole(self) -> bytes:
        """Returns the rest of the body. Raises ``RouterError`` when it breaks."""
        try:
            return await self._response.content.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _translated(error, self._engine) from error

    def close(self) -> None:
        """Closes the connection unless the whole body was read; for the engine that is an abort."""
        if self._response.content.is_eof():
            self._response.release()
        else:
            self._response.close()


class Upstream:
    """The connections to all engines. Used on the event loop that called :meth:`start`."""

    def __init__(
        self,
        *,
        connect_timeout_s: float,
        idle_s: float,
        keepalive_s: float,
        get_timeout_s: float,
        on_retry: Callable[[], None],
    ) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s, sock_read=idle_s)
        self._get_timeout = aiohttp.ClientTimeout(total=get_timeout_s, sock_connect=connect_timeout_s)
        self._keepalive_s = keepalive_s
        self._on_retry = on_retry
        self._kept: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        self._kept = _session(aiohttp.TCPConnector(limit=0, keepalive_timeout=self._keepalive_s))
        self._fresh = _session(aiohttp.TCPConnector(limit=0, force_close=True))

    async def stop(self) -> None:
        for session in (self._kept, self._fresh):
            if session is not None:
                await session.close()

    async def post(self, engine: Engine, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Sends one request and returns when its status is known; raises ``RouterError`` when it is not."""
        attempt = _Attempt(now())
        try:
            return await self._post(self._kept, engine, path, body, headers, attempt)
        except (aiohttp.ClientError, OSError) as error:
            if not _never_served(error, attempt):
                raise _translated(error, engine) from error
        self._on_retry()
        try:
            return await self._post(self._fresh, engine, path, body, headers, attempt)
        except (aiohttp.ClientError, OSError) as error:
            raise _translated(error, engine) from error

    async def _post(
        self,
        session: aiohttp.ClientSession | None,
        engine: Engine,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        attempt: _Attempt,
    ) -> Answer:
        assert session is not None, "Upstream.start() was not awaited"
        response = await session.post(
            engine.settings.url + path,
            data=io.BytesIO(body) if len(body) > _LARGE_BODY else body,
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity", **headers},
            allow_redirects=False,
            timeout=self._timeout,
            trace_request_ctx=attempt,
        )
        if response.status < 500:
            engine.seen_up()
        return Answer(engine, response)

    async def get(self, engine: Engine, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Returns status and body of a short GET; raises ``RouterError``."""
        assert self._kept is not None, "Upstream.start() was not awaited"
        try:
            async with self._kept.get(
                engine.settings.url + path, headers=headers, allow_redirects=False, timeout=self._get_timeout
            ) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _translated(error, engine) from error

    async def fetch(self, url: str, timeout_s: float) -> tuple[int, bytes] | None:
        """Returns status and body of a GET beside an engine's API; ``None`` without an answer in ``timeout_s``."""
        assert self._kept is not None, "Upstream.start() was not awaited"
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._kept.get(url, allow_redirects=False, timeout=timeout) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError):  # a timeout is an OSError
            return None


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()

    async def reused(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
        if isinstance(context.trace_request_ctx, _Attempt):
            context.trace_request_ctx.reused = True

    trace.on_connection_reuseconn.append(reused)
    return aiohttp.ClientSession(
        connector=connector,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent",),
        trace_configs=[trace],
    )


def _never_served(error: Exception, attempt: _Attempt) -> bool:
    if not attempt.reused or now() - attempt.started_ns > RETRY_WINDOW_NS:
        return False
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return isinstance(error.message, str)  # otherwise it carries the head of an answer that had begun
    return isinstance(error, aiohttp.ClientOSError) and not isinstance(error, aiohttp.ClientConnectorError)


def _translated(error: Exception, engine: Engine) -> RouterError:
    """Turns the client library's error into the router's, and tells the engine's health."""
    where = f"{engine.settings.role} engine {engine.engine_id} at {engine.settings.url}"
    match error:
        case aiohttp.ConnectionTimeoutError():
            engine.seen_down("connection timed out")
            return ConnectTimeoutError(f"{where} did not accept a connection in time; is it running?")
        case aiohttp.ClientConnectorError():
            engine.seen_down("connection refused")
            return UnreachableError(f"{where} is not reachable; is it running?")
        case TimeoutError():
            engine.suspect()
            return DeadlineError(f"{where} sent nothing for too long")
        case _:
            engine.suspect()
            return BrokenAnswerError(f"{where} broke the connection ({type(error).__name__}); see its log")
