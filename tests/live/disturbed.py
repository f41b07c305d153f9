"""The switch connector with faults that a test turns on and off while the engine runs.

Engines load it in place of ``connector.switch``. It reads a control file (``KVPATH_TEST_CONTROL``), at most once a
millisecond: ``{"fail": HANDLER, "where": "record" | "handler"}`` makes telemetry raise, either in the engine's own
thread where a fact is recorded or in the drain thread where it is handled. ``HANDLER`` is a qualified name such as
``WorkerStory.posted``; ``*`` means every one. Serving itself is untouched.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from connector.switch import SwitchConnector

faulthandler.register(signal.SIGUSR2, all_threads=True)  # a test that finds an engine stuck asks where

CONTROL = Path(os.environ["KVPATH_TEST_CONTROL"])
REREAD_NS = 1_000_000


class InjectedFaultError(Exception):
    """Raised inside telemetry on purpose."""


class Control:
    """The control file's content, reread when it is older than a millisecond."""

    def __init__(self) -> None:
        self._read_ns = 0
        self._content: dict[str, Any] = {}

    def content(self) -> dict[str, Any]:
        at_ns = time.monotonic_ns()
        if at_ns - self._read_ns > REREAD_NS:
            self._read_ns = at_ns
            try:
                self._content = json.loads(CONTROL.read_text())
            except (FileNotFoundError, ValueError):
                self._content = {}
        return self._content


class FailingRecord:
    """Stands in for ``Ledger.record``."""

    def __init__(self, record: Any) -> None:
        self._record = record
        self._control = Control()

    def __call__(self, handler: Any, at_ns: int, *data: Any) -> None:
        wanted = self._control.content()
        if wanted.get("fail") in (handler.__qualname__, "*"):
            if wanted.get("where") == "record":
                raise InjectedFaultError(handler.__qualname__)
            handler = _failing
        self._record(handler, at_ns, *data)


def _failing(*data: Any) -> None:
    raise InjectedFaultError("in the drain thread")


class DisturbedSwitchConnector(SwitchConnector):
    """The switch connector whose telemetry fails on request."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        ledger = self._connectors[0].runtime.ledger  # type: ignore[attr-defined]
        ledger.record = FailingRecord(ledger.record)
