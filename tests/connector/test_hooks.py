from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from connector.hooks import METADATA_ATTRIBUTE, WorkerHooks
from connector.ledger import Ledger
from tests.connector.conftest import PREFILL_LEG, carrier_of


def test_a_stamp_that_the_scheduler_could_not_take_is_counted_and_the_span_will_say_so() -> None:
    ledger, held = Ledger(), []
    story: Any = SimpleNamespace(offers=SimpleNamespace(held=lambda *data: held.append(data)))
    metadata = SimpleNamespace(push_registrations={}, reqs_to_recv={}, reqs_to_send={"a": 1.0}, push_finished_blocks={})
    setattr(metadata, METADATA_ATTRIBUTE, {"a": carrier_of(PREFILL_LEG, stamp_ns=0)})
    WorkerHooks(ledger, story).start(metadata)
    ledger.drain()
    ((_, _, carrier),) = held
    assert carrier.stamp_ns == 0
    assert ledger.losses.unmatched == 1
