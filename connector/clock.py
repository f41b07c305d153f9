"""One clock a process: integer nanoseconds from the monotonic clock, and one wall-clock anchor.

Hot paths stamp :func:`now` only. Whoever makes spans converts with :meth:`Clock.wall`; because the anchor is taken
once, a step of the wall clock cannot bend a duration. Processes of one boot share the monotonic clock, so their
anchors differ only by what the wall clock was stepped in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

now = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class Clock:
    """Converts monotonic nanoseconds of this process to Unix nanoseconds and back."""

    anchor_ns: int

    def wall(self, monotonic_ns: int) -> int:
        return monotonic_ns + self.anchor_ns

    def monotonic(self, wall_ns: int) -> int:
        return wall_ns - self.anchor_ns


def anchored(
    monotonic: Callable[[], int] = time.monotonic_ns, wall: Callable[[], int] = time.time_ns, tries: int = 16
) -> Clock:
    """Takes the anchor: the tightest of ``tries`` readings of the wall clock between two of the monotonic one."""
    best_width, best_anchor = None, 0
    for _ in range(tries):
        before = monotonic()
        middle = wall()
        after = monotonic()
        if best_width is None or after - before < best_width:
            best_width, best_anchor = after - before, middle - (before + after) // 2
    return Clock(best_anchor)


PROCESS_CLOCK = anchored()
