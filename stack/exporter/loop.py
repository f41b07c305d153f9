"""The polling thread: polls, pauses, survives what goes wrong, and knows whether it still works.

The thread ``kvpath-exporter`` owns the follower with its connections; :meth:`PollLoop.trouble` may be asked from any
thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from stack.analysis.source import SourceError
from stack.exporter.follower import Follower
from stack.exporter.metrics import ExporterMetrics
from stack.exporter.state import StateError

EXPECTED = (SourceError, StateError)
STALE_AFTER_POLLS = 4
STALE_AFTER_S = 60.0  # at least: one slow answer of the trace store is no failure

_log = logging.getLogger(__name__)


class PollLoop:
    """Polls every ``poll_s`` seconds, at once while there is a backlog, until :meth:`stop`."""

    def __init__(
        self,
        follower: Follower,
        metrics: ExporterMetrics,
        poll_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._follower, self._metrics, self._poll_s, self._monotonic = follower, metrics, poll_s, monotonic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvpath-exporter", daemon=True)
        self._failure = "no poll has succeeded yet"
        self._succeeded_at: float | None = None
        self._said: set[str] = set()  # kinds of errors that were logged since the last good poll

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Ends the thread after the poll in progress; returns whether that took less than ``timeout_s``."""
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def trouble(self) -> str:
        """Says why figures are not up to date; "" when they are."""
        if self._failure:
            return f"the last poll failed: {self._failure}" if self._succeeded_at is not None else self._failure
        assert self._succeeded_at is not None
        age_s = self._monotonic() - self._succeeded_at
        if age_s > max(STALE_AFTER_POLLS * self._poll_s, STALE_AFTER_S):
            return f"the last poll ended {age_s:.0f} s ago"
        return ""

    def _run(self) -> None:
        while not self._stop.is_set():
            self.step()
            self._stop.wait(0 if not self._failure and self._follower.busy else self._poll_s)

    def step(self) -> None:
        """Polls once; never raises."""
        try:
            problems = self._follower.poll()
        except Exception as error:
            self._metrics.poll_errors.inc()
            self._failure = str(error) or type(error).__name__
            self._say(type(error).__name__, self._failure, error)
            return
        for problem in problems:
            self._metrics.poll_errors.inc()
            self._say("trace", problem)
        if self._failure and self._succeeded_at is not None:
            _log.warning("critical-path exporter: polling again")
        self._failure, self._succeeded_at = "", self._monotonic()
        if not problems:
            self._said.clear()

    def _say(self, kind: str, text: str, error: Exception | None = None) -> None:
        """Logs the first of each kind; one that nobody expected with its traceback."""
        if kind not in self._said:
            self._said.add(kind)
            expected = error is None or isinstance(error, EXPECTED)
            _log.error("critical-path exporter: %s", text, exc_info=None if expected else error)
