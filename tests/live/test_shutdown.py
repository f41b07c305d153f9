"""The last test of the session: the stack stops in time although nobody takes its spans. It ends the shared engines."""

from __future__ import annotations

import time

from conftest import MODES, LiveStack, engine_processes

LIMIT_S = 5.0


def test_everything_stops_in_time_while_the_store_does_not_answer(stack: LiveStack) -> None:
    before = engine_processes()
    assert len(before) >= 6  # API server, engine core and worker of each engine
    with stack.gate.behaving("slow"):
        for mode in MODES:
            stack.ask(mode, "Spans of this request wait for a store that does not answer.")
        started = time.monotonic()
        stack.deployment.stop()
        took = time.monotonic() - started
    assert took < LIMIT_S
    assert engine_processes() & before == set()
