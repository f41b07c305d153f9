"""The client against a real HTTP server that answers, stalls and breaks off as it is told."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from stack.demo.client import RequestError, stream_completion


class Script(http.server.HTTPServer):
    """Serves one scripted answer and keeps what it was asked."""

    status = 200
    events: tuple[str, ...] = ()
    body: dict[str, object]
    headers: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Script

    def do_POST(self) -> None:
        self.server.body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.headers = {name.lower(): value for name, value in self.headers.items()}
        self.send_response(self.server.status)
        self.end_headers()
        for event in self.server.events:
            self.wfile.write(event.encode() + b"\n\n")
            self.wfile.flush()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Script]:
    with Script(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def chunk(text: str, **more: object) -> str:
    return "data: " + json.dumps({"choices": [{"text": text}], **more})


USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 64, "completion_tokens": 2}}'
DONE = "data: [DONE]"


def test_a_whole_answer(server: Script) -> None:
    server.events = (": comment", chunk(" one"), chunk(" two"), USAGE, DONE)
    answer = stream_completion(server.url, "m", "prompt", {"x-kvpath-mode": "pull"})
    assert (answer.text, answer.chunks, answer.prompt_tokens, answer.output_tokens) == (" one two", 2, 64, 2)
    assert 0 < answer.ttft_ns <= answer.duration_ns


def test_what_is_sent(server: Script) -> None:
    server.events = (chunk("a"), DONE)
    answer = stream_completion(server.url, "m", "prompt", {"x-kvpath-mode": "pull"})
    assert (server.body["temperature"], server.body["stream"], server.body["max_tokens"]) == (0, True, 16)
    assert server.headers["x-kvpath-mode"] == "pull"
    version, trace_id, span_id, flags = server.headers["traceparent"].split("-")
    assert (version, trace_id, len(span_id), flags) == ("00", answer.trace_id, 16, "01")


def test_every_request_has_a_trace_of_its_own(server: Script) -> None:
    server.events = (chunk("a"), DONE)
    assert len({stream_completion(server.url, "m", "p").trace_id for _ in range(3)}) == 3


@pytest.mark.parametrize(
    ("status", "events", "message"),
    [
        (503, ('{"error": {"message": "no engine"}}',), "HTTP 503.*no engine"),
        (200, (chunk("a"), 'data: {"error": {"message": "engine died"}}', DONE), "engine died"),
        (200, (chunk("a"),), "ended early"),
        (200, (DONE,), "without a token"),
    ],
)
def test_what_is_not_a_whole_answer_is_an_error(
    server: Script, status: int, events: tuple[str, ...], message: str
) -> None:
    server.status, server.events = status, events
    with pytest.raises(RequestError, match=message):
        stream_completion(server.url, "m", "prompt")


def test_nobody_listening_is_an_error() -> None:
    with pytest.raises(RequestError, match="cannot connect"):
        stream_completion("http://127.0.0.1:1", "m", "prompt")
