"""What a running test asks of the processes that it shares with others: a small JSON file, and the places of delays.

``{"fail": HANDLER, "where": "record" | "handler"}`` makes telemetry fail (:mod:`disturbed`).
``{"delay": {PLACE: seconds}}`` holds requests up at known places (:mod:`late`, :mod:`slow_router`).
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

VARIABLE = "KVPATH_TEST_CONTROL"
REREAD_NS = 1_000_000

CHOICE_OF_P = "choice_of_p"  # the router chooses P
CHOICE_OF_D = "choice_of_d"  # the router chooses D
P_QUEUE = "p_queue"  # P's scheduler looks at the request for the first time
REGISTRATION = "registration_sent"  # D's worker sends the registration
POST = "transfer_posted"  # a WRITE or READ is prepared and handed to NIXL
FLIGHT = "in_flight"  # NIXL has it, the link does not begin
COMPLETION = "completion_counted"  # P's completion notification has arrived at D and is not handed out (push)
REPORT = "completion_reported"  # D's worker knows that the KV is there and tells its scheduler
FIRST_STEP = "first_step"  # D's scheduler has chosen the request for its first step


class Control:
    """The control file's content, reread when it is older than a millisecond. For any thread."""

    def __init__(self) -> None:
        self._path = Path(os.environ[VARIABLE])
        self._read_ns = 0
        self._content: dict[str, Any] = {}

    def content(self) -> dict[str, Any]:
        at_ns = time.monotonic_ns()
        if at_ns - self._read_ns > REREAD_NS:
            self._read_ns = at_ns
            try:
                self._content = json.loads(self._path.read_text())
            except (FileNotFoundError, ValueError):
                self._content = {}
        return self._content

    def delay_s(self, place: str) -> float:
        return float(self.content().get("delay", {}).get(place, 0.0))

    def hold(self, place: str) -> None:
        """Blocks the calling thread for as long as the test says."""
        seconds = self.delay_s(place)
        if seconds:
            time.sleep(seconds)
