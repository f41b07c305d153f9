"""One measured streaming request: HTTP, OpenAI's event stream and this process's monotonic clock, nothing of kvpath.

TTFT runs from just before the request is handed to the HTTP library (connecting included, when no kept connection is
there) to the instant at which the bytes with the first token were read. Every further event is stamped likewise, with
the instant at which its bytes were read and before they are parsed, so that parsing is in no latency.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp

COMPLETIONS_PATH = "/v1/completions"
_SHOWN = 300  # characters of an engine's own message


class RequestError(Exception):
    """A request got no complete answer. ``kind`` is one of a few words to count by, ``status`` the HTTP status or 0."""

    def __init__(self, message: str, kind: str = "request_error", status: int = 0, trace_id: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.trace_id = trace_id


@dataclass(frozen=True, slots=True)
class Answer:
    """What one streamed request gave. Times in nanoseconds since the request began."""

    trace_id: str
    text: str
    ttft_ns: int
    duration_ns: int
    chunks: int  # events that brought a token
    prompt_tokens: int
    output_tokens: int
    headers: Mapping[str, str] = field(default_factory=dict)
    gaps_ns: tuple[int, ...] = ()  # between one token event and the next
    started_ns: int = 0  # monotonic

    @property
    def tpot_ns(self) -> float | None:
        """Time per output token after the first: first to last token event over the tokens in between."""
        return sum(self.gaps_ns) / (self.output_tokens - 1) if self.output_tokens > 1 and self.gaps_ns else None


def new_session(timeout_s: float) -> aiohttp.ClientSession:
    """Returns a session without a limit on connections: a limit would be a queue inside the client."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        read_bufsize=2**20,
        trust_env=False,
    )


def completion_body(model: str, prompt: str, output_tokens: int) -> dict[str, Any]:
    """Returns a greedy streaming completion of exactly ``output_tokens`` tokens that reports its token counts."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def stream(
    session: aiohttp.ClientSession, url: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> Answer:
    """Sends one completion; raises :class:`RequestError`.

    The request carries a trace id of the client's own, sampled, so that its trace is kept and known without asking.
    """
    payload = json.dumps(body).encode()
    trace_id = secrets.token_hex(16)
    sent = {"content-type": "application/json", "traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01", **headers}
    started = time.perf_counter_ns()
    try:
        async with session.post(url + COMPLETIONS_PATH, data=payload, headers=sent) as response:
            if response.status != 200:
                raise await _refused(response, trace_id)
            events = await _read(response, trace_id)
            return _answer(events, response.headers, trace_id, started)
    except TimeoutError as error:
        raise RequestError(f"{url}: no whole answer in time", "timeout", trace_id=trace_id) from error
    except aiohttp.ClientConnectorError as error:
        raise RequestError(f"{url}: cannot connect ({error.strerror})", "connect_error", trace_id=trace_id) from error
    except (OSError, aiohttp.ClientError) as error:
        raise RequestError(f"{url}: {error!r}", "broken_answer", trace_id=trace_id) from error


async def _refused(response: aiohttp.ClientResponse, trace_id: str) -> RequestError:
    text = " ".join((await response.text(errors="replace")).split())
    with suppress(ValueError, KeyError, TypeError):
        text = json.loads(text)["error"]["message"]
    status = response.status
    return RequestError(f"HTTP {status}: {str(text)[:_SHOWN]}", f"http_{status}", status, trace_id)


@dataclass(slots=True)
class _Events:
    """The token events of a stream, and what its end said."""

    texts: list[str] = field(default_factory=list)
    at_ns: list[int] = field(default_factory=list)
    usage: Mapping[str, int] = field(default_factory=dict)
    done: bool = False


async def _read(response: aiohttp.ClientResponse, trace_id: str) -> _Events:
    events = _Events()
    rest = b""
    async for data in response.content.iter_any():
        seen = time.perf_counter_ns()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                _follow(events, line[5:].strip(), seen, trace_id)
    if not events.done or not events.at_ns:
        what = "without a token" if events.done else "early"
        raise RequestError(f"the stream ended {what} after {len(events.at_ns)} tokens", "broken_answer", 200, trace_id)
    return events


def _follow(events: _Events, data: bytes, seen: int, trace_id: str) -> None:
    if data == b"[DONE]":
        events.done = True
        return
    try:
        event = json.loads(data)
    except ValueError:
        raise RequestError(f"not JSON in the stream: {data[:60]!r}", "broken_answer", 200, trace_id) from None
    if "error" in event:
        raise RequestError(f"error in the stream: {event['error']}"[:_SHOWN], "stream_error", 200, trace_id)
    events.usage = event.get("usage") or events.usage
    choices = event.get("choices")
    if choices:
        # An event without text still brings a token: one that completes no character yet.
        events.texts.append(choices[0].get("text") or "")
        events.at_ns.append(seen)


def _answer(events: _Events, headers: Mapping[str, str], trace_id: str, started: int) -> Answer:
    at = events.at_ns
    return Answer(
        trace_id=trace_id,
        text="".join(events.texts),
        ttft_ns=at[0] - started,
        duration_ns=at[-1] - started,
        chunks=len(at),
        prompt_tokens=events.usage.get("prompt_tokens", 0),
        output_tokens=events.usage.get("completion_tokens", len(at)),
        headers={name.lower(): value for name, value in headers.items()},
        gaps_ns=tuple(later - earlier for earlier, later in pairwise(at)),
        started_ns=started,
    )
