"""Telemetry that fails, a store that misbehaves, clients that leave: requests and engines do not notice."""

from __future__ import annotations

import json
import socket
import time

import pytest
from conftest import MODES, LiveStack, eventually

from connector import names

PROMPT = "The monotonic clock of a process never goes back. "
RECORDED = {
    "prefill": (
        "RequestStory.prefill_received",
        "RequestStory.prefill_scheduled",
        "RequestStory.prefill_finished",
        "Offers.held",
        "Offers.finished",
        "Offers.released",
    ),
    "decode": (
        "RequestStory.decode_received",
        "RequestStory.decode_allocated",
        "RequestStory.received",
        "RequestStory.decode_first_token",
        "Receipts.staged",
        "Receipts.read_wanted",
        "Receipts.finished",
        "WorkerStory.prepared",
        "WorkerStory.posted",
        "WorkerStory.ended",
        "WorkerStory.measured",
        "WorkerStory.sent",
        "WorkerStory.received",
    ),
}


@pytest.fixture
def healed(stack: LiveStack):
    yield
    stack.heal()


@pytest.mark.parametrize("where", ["record", "handler"])
@pytest.mark.parametrize(
    ("role", "handler"), [(role, handler) for role, handlers in RECORDED.items() for handler in handlers]
)
def test_an_exception_in_telemetry_is_counted_and_serving_goes_on(
    stack: LiveStack, healed: None, role: str, handler: str, where: str
) -> None:
    engine = stack.prefill if role == "prefill" else stack.decode
    before = stack.metric(engine, "kvpath_telemetry_errors_total")
    stack.fail(handler, where)
    for mode in MODES:
        assert stack.ask(mode, PROMPT).text
    stack.heal()

    def counted() -> bool:
        stack.ask(names.MODE_PULL, "Samples travel with the next step.")
        return stack.metric(engine, "kvpath_telemetry_errors_total") > before

    eventually(counted, 20)


def test_everything_failing_at_once(stack: LiveStack, healed: None) -> None:
    plain = stack.ask(names.MODE_PLAIN, PROMPT).text
    for where in ("record", "handler"):
        stack.fail("*", where)
        for mode in MODES:
            assert stack.ask(mode, PROMPT).text == plain


@pytest.mark.parametrize("behaviour", ["closed", "error", "slow"])
def test_a_store_that_misbehaves_does_not_touch_requests(stack: LiveStack, behaviour: str) -> None:
    usual = min(stack.ask(names.MODE_PUSH, PROMPT).ttft_ns for _ in range(2))
    with stack.gate.behaving(behaviour):
        ttfts = [stack.ask(mode, PROMPT).ttft_ns for mode in MODES for _ in range(2)]
    assert min(ttfts) < 5 * usual + 1_000_000_000


def test_lost_spans_are_counted(stack: LiveStack) -> None:
    lost = {
        engine.role: stack.metric(engine, "kvpath_telemetry_lost_total", kind="spans_failed")
        for engine in (stack.prefill, stack.decode)
    }

    def counted() -> bool:
        stack.ask(names.MODE_PUSH, PROMPT)
        return all(
            stack.metric(engine, "kvpath_telemetry_lost_total", kind="spans_failed") > lost[engine.role]
            for engine in (stack.prefill, stack.decode)
        )

    with stack.gate.behaving("error"):
        stack.ask(names.MODE_PUSH, PROMPT)
        eventually(counted, 60, poll_s=1.0)


def leave_after(stack: LiveStack, mode: str, seconds: float | None) -> None:
    """Sends a long streaming request and closes the connection: after ``seconds``, or in mid-stream when ``None``."""
    body = json.dumps(
        {
            "model": stack.settings.model_name,
            "prompt": PROMPT * 24,
            "max_tokens": 200,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"{names.HEADER_MODE}: {mode}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", stack.settings.router_port)) as connection:
        connection.sendall(head.encode() + body)
        if seconds is None:
            connection.settimeout(60)
            received = b""
            while received.count(b"data:") < 3:
                received += connection.recv(65536)
        else:
            time.sleep(seconds)  # the moment to leave is the point of this test


@pytest.mark.parametrize("moment", [0.05, 0.4, 0.9, 1.4, None])
@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_leaves_leaves_nothing_behind(stack: LiveStack, mode: str, moment: float | None) -> None:
    eventually(lambda: stack.in_flight() == 0, 60)
    leave_after(stack, mode, moment)

    def clean() -> bool:
        stack.step_prefill()
        return stack.in_flight() == 0 and stack.kv_usage() == 0

    eventually(clean, 60, poll_s=0.5)
    assert stack.ask(mode, PROMPT).text
