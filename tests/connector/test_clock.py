from __future__ import annotations

import time

import pytest

from connector.clock import PROCESS_CLOCK, Clock, anchored


def test_wall_and_monotonic_are_inverse_and_exact() -> None:
    clock = Clock(1_764_000_000_123_456_789)
    assert clock.monotonic(clock.wall(987_654_321)) == 987_654_321
    assert clock.wall(1) - clock.wall(0) == 1


def test_the_tightest_reading_is_the_anchor() -> None:
    monotonic = iter([0, 100, 200, 210, 300, 390])  # widths 100, 10, 90
    wall = iter([1_000, 2_000, 3_000])
    assert anchored(lambda: next(monotonic), lambda: next(wall), tries=3) == Clock(2_000 - 205)


def test_a_step_of_the_wall_clock_bends_no_duration() -> None:
    stepped = iter([10_000, 3_600_000_010_000])
    clock = anchored(lambda: 0, lambda: next(stepped), tries=1)
    assert clock.wall(5) - clock.wall(0) == 5


def test_the_process_clock_agrees_with_the_wall_clock() -> None:
    assert PROCESS_CLOCK.wall(time.monotonic_ns()) == pytest.approx(time.time_ns(), abs=50_000_000)
