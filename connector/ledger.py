"""Facts on the hot path, spans off it.

Engine threads call :meth:`Ledger.record`: one length check and one append to a bounded queue, no lock, no allocation
beyond the tuple. A fact names the handler that understands it; one daemon thread per process drains the queue and
calls the handlers, so that their state has one owner. What goes wrong in a handler is counted in :class:`Losses`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from connector.clock import now

logger = logging.getLogger(__name__)

DEFAULT_CAPACITY = 65_536  # facts
DRAIN_INTERVAL_S = 0.05

Handler = Callable[..., None]
Fact = tuple[Any, ...]  # (handler, monotonic ns, *data)


@dataclass(slots=True)
class Losses:
    """Counts of what telemetry lost in this process; each field is a label value of one metric.

    ``errors``: exceptions inside telemetry, swallowed. ``dropped``: facts refused by a full queue. ``evicted``:
    requests forgotten before their story ended. ``unmatched``: facts that belong to no known request.
    """

    errors: int = 0
    dropped: int = 0
    evicted: int = 0
    unmatched: int = 0

    @property
    def untold(self) -> int:
        """Facts that nobody was told of."""
        return self.errors + self.dropped


class Ledger:
    """The bounded queue of facts and the thread that drains it."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY, interval_s: float = DRAIN_INTERVAL_S) -> None:
        self._queue: deque[Fact] = deque()
        self._capacity = capacity
        self._interval_s = interval_s
        self._idle_hooks: list[Callable[[int], None]] = []
        self._stop = threading.Event()
        self._drain_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.losses = Losses()

    def record(self, *fact: Any) -> None:
        """Appends a fact: a :data:`Handler`, when it happened (monotonic ns), and what else the handler takes.

        Called by engine threads; a full queue refuses and counts (a race may overfill by one).
        """
        if len(self._queue) >= self._capacity:
            self.losses.dropped += 1
            return
        self._queue.append(fact)

    def error(self) -> None:
        """Counts an exception that telemetry swallowed, and logs the first with its traceback."""
        self.losses.errors += 1
        if self.losses.errors == 1:
            logger.exception("kvpath telemetry failed; serving goes on, further failures are only counted")

    def on_idle(self, hook: Callable[[int], None]) -> None:
        """Registers a hook that the drain thread calls with the time (monotonic ns) after each pass."""
        self._idle_hooks.append(hook)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="kvpath-drain", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stops the thread and drains what is left in the caller's thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        self.drain()

    def drain(self) -> int:
        """Handles every waiting fact; returns how many. Used by the thread, and by tests instead of waiting."""
        handled = 0
        with self._drain_lock:
            while self._queue:
                handler, *data = self._queue.popleft()
                handled += 1
                try:
                    handler(*data)
                except Exception:
                    self.error()
            at_ns = now()
            for hook in self._idle_hooks:
                try:
                    hook(at_ns)
                except Exception:
                    self.error()
        return handled

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.drain()
