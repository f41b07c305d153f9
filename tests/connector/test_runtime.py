from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from connector import metrics, names, runtime
from connector.runtime import Runtime


def make() -> Runtime:
    return Runtime(names.SERVICE_PREFILL, "prefill-0", {})


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert runtime._users == 0
    assert runtime._runtime is None
    assert "kvpath-drain" not in {thread.name for thread in threading.enumerate()}


def test_one_process_has_one_runtime_and_the_last_use_closes_it() -> None:
    first, second = runtime.acquire(make), runtime.acquire(make)
    assert first.runtime is second.runtime
    first.release()
    assert "kvpath-drain" in {thread.name for thread in threading.enumerate()}
    second.release()


def test_releasing_twice_is_releasing_once() -> None:
    first, second = runtime.acquire(make), runtime.acquire(make)
    first.release()
    first.release()
    assert runtime._users == 1
    second.release()


def test_a_new_runtime_can_follow() -> None:
    first = runtime.acquire(make)
    first.release()
    second = runtime.acquire(make)
    assert second.runtime is not first.runtime
    second.release()


def test_spans_carry_the_engines_name_and_peers_its_nixl_id() -> None:
    named = Runtime(names.SERVICE_DECODE, "5f0c", {runtime.OPTION_INSTANCE: "decode-0"})
    nameless = make()
    assert (named.instance, named.context.engine_id, named.context.decodes) == ("decode-0", "5f0c", True)
    assert (nameless.instance, nameless.context.engine_id, nameless.context.decodes) == (
        "prefill-0",
        "prefill-0",
        False,
    )
    named.close()
    nameless.close()


def test_a_runtime_that_cannot_be_made_is_not_counted() -> None:
    with pytest.raises(ValueError, match="not an HTTP URL"):
        runtime.acquire(lambda: Runtime("svc", "e", {runtime.OPTION_ENDPOINT: "localhost:4317"}))


def test_losses_become_samples_at_most_once_a_second() -> None:
    use = runtime.acquire(make)
    use.runtime.ledger.drain()
    use.runtime.samples.take()
    use.runtime.ledger.losses.dropped += 3
    use.runtime._report_losses(use.runtime._next_report_ns - 1)
    assert use.runtime.samples.take() == []
    use.runtime._report_losses(use.runtime._next_report_ns)
    assert use.runtime.samples.take() == [[metrics.TELEMETRY_LOST.name, 3, "facts_dropped"]]
    use.release()


def test_options_bound_the_queues() -> None:
    use = runtime.acquire(lambda: Runtime("svc", "e", {runtime.OPTION_FACT_CAPACITY: 2}))
    use.runtime.ledger.stop()
    for at_ns in range(5):
        use.runtime.ledger.record(lambda at_ns: None, at_ns)
    assert use.runtime.ledger.losses.dropped == 3
    use.release()


def test_closing_says_what_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    use = runtime.acquire(lambda: Runtime("svc", "e", {runtime.OPTION_ENDPOINT: "http://127.0.0.1:9"}))
    use.runtime.telemetry.tracer.start_span("work").end()
    with caplog.at_level(logging.WARNING, logger="connector.runtime"):
        use.release()
    assert "lost 1 of 1 spans" in caplog.text


def connector(model: str, name: str, **options: Any) -> Any:
    from tests.connector.upstream import KVConnectorRole, make_connector, vllm_config

    config = vllm_config(model, name, "connector.nixl", "kv_producer", "prefill-0", **options)
    return make_connector(config, KVConnectorRole.SCHEDULER)


@pytest.mark.usefixtures("vllm")
def test_the_last_connector_of_a_process_closes_its_telemetry(small_model: str) -> None:
    first, second = connector(small_model, "TracedPushConnector"), connector(small_model, "TracedPullConnector")
    assert runtime._users == 2
    first.shutdown()
    first.shutdown()
    assert runtime._users == 1
    second.shutdown()


@pytest.mark.usefixtures("vllm")
def test_a_bad_endpoint_is_one_clear_error(small_model: str) -> None:
    with pytest.raises(ValueError, match="not an HTTP URL"):
        connector(small_model, "TracedPushConnector", **{runtime.OPTION_ENDPOINT: "localhost:4317"})
