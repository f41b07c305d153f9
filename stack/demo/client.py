"""An independent client: it knows HTTP, OpenAI's streaming format and its own clock, and nothing of kvpath.

It measures the time to the first token itself (monotonic clock of this process: before the connection is opened →
first content chunk read), so that the figures of the traces can be held against it.
"""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

TIMEOUT_S = 180.0
OUTPUT_TOKENS = 16


class RequestError(Exception):
    """A request got no complete answer; the message says what came instead."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one streamed request gave. Times in nanoseconds since the request began."""

    trace_id: str
    text: str
    ttft_ns: int
    duration_ns: int
    chunks: int
    prompt_tokens: int
    output_tokens: int
    headers: Mapping[str, str] = field(default_factory=dict)


def stream_completion(url: str, model: str, prompt: str, headers: Mapping[str, str] | None = None) -> Answer:
    """Sends one greedy streaming completion of 16 tokens; raises :class:`RequestError`.

    The trace id is the client's own, so that it knows the trace of each request without asking anybody.
    """
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": OUTPUT_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    payload = json.dumps(body).encode()
    trace_id = secrets.token_hex(16)
    sent = {"Content-Type": "application/json", "traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"}
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT_S)
    started = time.perf_counter_ns()
    try:
        connection.request("POST", "/v1/completions", payload, sent | dict(headers or {}))
        response = connection.getresponse()
        if response.status != 200:
            raise RequestError(f"HTTP {response.status}: {response.read(500).decode('utf-8', 'replace')}")
        return _read_stream(response, trace_id, started)
    except (OSError, http.client.HTTPException) as error:
        raise RequestError(f"{url}: {error!r}") from error
    finally:
        connection.close()


def _read_stream(response: http.client.HTTPResponse, trace_id: str, started: int) -> Answer:
    texts: list[str] = []
    first: int | None = None
    usage: dict[str, int] = {}
    done = False
    while line := response.readline():
        if not line.startswith(b"data:"):
            continue
        seen = time.perf_counter_ns()
        data = line[5:].strip()
        if data == b"[DONE]":
            done = True
            break
        chunk = json.loads(data)
        if "error" in chunk:
            raise RequestError(f"error in the stream: {chunk['error']}")
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices", ()):
            if choice.get("text"):
                first = first or seen
                texts.append(choice["text"])
    if not done or first is None:
        raise RequestError(f"the stream ended {'without text' if done else 'early'} after {len(texts)} chunks")
    return Answer(
        trace_id=trace_id,
        text="".join(texts),
        ttft_ns=first - started,
        duration_ns=time.perf_counter_ns() - started,
        chunks=len(texts),
        prompt_tokens=usage.get("prompt_tokens", 0),
        output_tokens=usage.get("completion_tokens", 0),
        headers={name.lower(): value for name, value in response.getheaders()},
    )
