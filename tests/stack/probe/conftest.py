from __future__ import annotations

from typing import Any

import pytest

from stack.probe.plan import Plan
from stack.probe.shape import BlockShape


def make_plan(**options: Any) -> Plan:
    """Three layers of 1 KiB blocks, eight blocks a transfer."""
    shape = BlockShape(layers=3, kv_heads=1, head_size=8, dtype="float32", block_size=16)
    return Plan(**{"shape": shape, "tokens": 128, "repetitions": 2, **options})


@pytest.fixture
def plan() -> Plan:
    return make_plan()


@pytest.fixture(name="make_plan")
def _make_plan() -> Any:
    return make_plan
