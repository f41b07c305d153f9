"""Marks every change of the split in Grafana, beside serving: the change never waits for it, and stands without it.

Owned by the event loop; one thread of its own talks to Grafana, so that changes appear in their order.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping

from connector import names
from stack.grafana.annotate import Annotator, split_text

WAITING = 16  # changes that wait for a slow Grafana; further ones are not marked
_log = logging.getLogger(__name__)


class SplitAnnotations:
    """``count`` is told of every change: True when it stands in Grafana, False when it does not."""

    def __init__(self, annotator: Annotator, count: Callable[[bool], None]) -> None:
        self._annotator = annotator
        self._count = count
        self._changes: queue.Queue[tuple[str, float]] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None

    def changed(self, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """Returns at once."""
        if dict(before) == dict(after):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="annotations", daemon=True)
            self._thread.start()
        try:
            self._changes.put_nowait((split_text(before, after), time.time()))
        except queue.Full:
            self._count(False)

    def _write(self) -> None:
        while True:
            text, at = self._changes.get()
            problem = self._annotator.annotate(text, names.ANNOTATION_SPLIT, at)
            if problem is not None:
                _log.warning("%s", problem)
            self._count(problem is None)
