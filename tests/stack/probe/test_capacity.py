from __future__ import annotations

from pathlib import Path

import pytest

from stack.probe import capacity
from stack.probe.errors import ProbeError


def test_this_host_tells() -> None:
    available = capacity.available_bytes()
    assert available is not None
    assert available > 2**20


@pytest.mark.parametrize(("limit", "expected"), [("1000\n", 400), ("500\n", 0), ("max\n", 2048)])
def test_the_tighter_of_host_and_control_group_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, expected: int
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  9 kB\nMemAvailable:       2 kB\n")
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("600\n")
    monkeypatch.setattr(capacity, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(capacity, "_CGROUP", tmp_path)
    assert capacity.available_bytes() == expected


def test_a_host_that_tells_nothing_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(capacity, "_CGROUP", tmp_path)
    assert capacity.available_bytes() is None
    capacity.require(2**60, None, "host memory")


def test_some_memory_is_left_free() -> None:
    capacity.require(90, 100, "host memory")
    with pytest.raises(ProbeError, match="of host memory"):
        capacity.require(91, 100, "host memory")
