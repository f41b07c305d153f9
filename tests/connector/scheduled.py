"""Requests as the scheduler's hooks tell of them: ``p-1`` on P, received 5 ms before ``START``, and ``d-1`` on D."""

from __future__ import annotations

from typing import Any

from connector import names
from connector.carrier import Carrier
from connector.requests import RequestStory
from tests.connector.conftest import DECODE_LEG, PREFILL_LEG, Engine, carrier_of

MS = 1_000_000
P = carrier_of(PREFILL_LEG)
D = carrier_of(DECODE_LEG)
REUSE = carrier_of(PREFILL_LEG, names.MODE_REUSE)
START = 1_000 * MS


def arrival_s(engine: Engine, monotonic_ns: int) -> float:
    return engine.at(monotonic_ns) / 1e9


def receive(engine: Engine, story: RequestStory, carrier: Carrier = P) -> None:
    story.prefill_received(START, "p-1", carrier, arrival_s(engine, START - 5 * MS), 128)


def finish(story: RequestStory, at_ns: int, error: str | None = None, carrier: Carrier = P) -> None:
    """As upstream does it: the blocks of what failed are not kept."""
    story.prefill_finished(at_ns, "p-1", carrier, error, error is None)


def attributes(span: Any) -> dict[str, Any]:
    return dict(span.attributes)
