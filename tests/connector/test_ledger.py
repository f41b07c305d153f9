from __future__ import annotations

import logging
import threading

import pytest

from connector.ledger import Ledger


def test_facts_are_handled_in_order_with_their_data() -> None:
    ledger, handled = Ledger(), []
    ledger.record(lambda *data: handled.append(data), 1, "a")
    ledger.record(lambda *data: handled.append(data), 2)
    assert ledger.drain() == 2
    assert handled == [(1, "a"), (2,)]
    assert ledger.drain() == 0


def test_a_full_queue_refuses_and_counts() -> None:
    ledger, handled = Ledger(capacity=3), []
    for at_ns in range(10):
        ledger.record(handled.append, at_ns)
    ledger.drain()
    assert handled == [0, 1, 2]
    assert ledger.losses.dropped == 7
    ledger.record(handled.append, 10)
    ledger.drain()
    assert handled[-1] == 10


def test_a_handler_that_raises_costs_only_its_own_fact(caplog: pytest.LogCaptureFixture) -> None:
    ledger, handled = Ledger(), []

    def broken(at_ns: int) -> None:
        raise ValueError(at_ns)

    for at_ns in range(3):
        ledger.record(broken, at_ns)
        ledger.record(handled.append, at_ns)
    with caplog.at_level(logging.ERROR):
        ledger.drain()
    assert handled == [0, 1, 2]
    assert ledger.losses.errors == 3
    assert len(caplog.records) == 1, "only the first failure is logged"
    assert "ValueError" in caplog.text


def test_an_idle_hook_that_raises_is_counted_and_the_next_one_runs() -> None:
    ledger, seen = Ledger(), []
    ledger.on_idle(lambda at_ns: 1 // 0)
    ledger.on_idle(seen.append)
    ledger.drain()
    assert len(seen) == 1
    assert ledger.losses.errors == 1


def test_the_thread_drains_by_itself() -> None:
    ledger, done = Ledger(interval_s=0.001), threading.Event()
    ledger.start()
    ledger.record(lambda at_ns: done.set(), 0)
    assert done.wait(5)
    ledger.stop()


def test_stop_drains_what_is_left() -> None:
    ledger, handled = Ledger(interval_s=60), []
    ledger.start()
    ledger.record(handled.append, 7)
    ledger.stop()
    assert handled == [7]


def test_many_threads_lose_nothing() -> None:
    ledger, handled = Ledger(), []
    threads = [
        threading.Thread(target=lambda: [ledger.record(handled.append, at_ns) for at_ns in range(500)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.drain()
    assert len(handled) + ledger.losses.dropped == 4_000
    assert ledger.losses.dropped == 0
