from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not so within {timeout_s} s"
        time.sleep(0.01)


@pytest.fixture
def is_alive() -> Callable[[int], bool]:
    """Says whether a process runs; a zombie does not."""
    return _is_alive


@pytest.fixture
def wait_for() -> Callable[..., None]:
    """Waits for something another process does."""
    return _wait_for
