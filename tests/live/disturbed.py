"""The switch connector with faults and delays that a test turns on and off while the engine runs.

Engines load it in place of ``connector.switch``. It reads a control file (:mod:`control`). Faults are in telemetry
alone: it raises either in the engine's own thread, where a fact is recorded, or in the drain thread, where it is
handled. ``HANDLER`` is a qualified name such as ``WorkerStory.posted``; ``*`` means every one. Serving itself is
untouched by faults; delays are in serving itself, and telemetry is left to find them.
"""

from __future__ import annotations

import faulthandler
import signal
from typing import Any

from control import FIRST_STEP, P_QUEUE, REPORT, Control
from late import put_around_tap

from connector.nixl import KVConnectorRole
from connector.switch import SwitchConnector

faulthandler.register(signal.SIGUSR2, all_threads=True)  # a test that finds an engine stuck asks where

CONTROL = Control()


class InjectedFaultError(Exception):
    """Raised inside telemetry on purpose."""


class FailingRecord:
    """Stands in for ``Ledger.record``."""

    def __init__(self, record: Any) -> None:
        self._record = record

    def __call__(self, handler: Any, at_ns: int, *data: Any) -> None:
        wanted = CONTROL.content()
        if wanted.get("fail") in (handler.__qualname__, "*"):
            if wanted.get("where") == "record":
                raise InjectedFaultError(handler.__qualname__)
            handler = _failing
        self._record(handler, at_ns, *data)


def _failing(*data: Any) -> None:
    raise InjectedFaultError("in the drain thread")


class DisturbedSwitchConnector(SwitchConnector):
    """The switch connector whose telemetry fails, and which takes its time, on request."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._decodes = vllm_config.kv_transfer_config.kv_role == "kv_consumer"
        ledger = self._connectors[0].runtime.ledger  # type: ignore[attr-defined]
        ledger.record = FailingRecord(ledger.record)
        if role == KVConnectorRole.WORKER:
            for child in self._connectors:
                put_around_tap(child.connector_worker, CONTROL)  # type: ignore[attr-defined]

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if (request.kv_transfer_params or {}).get("do_remote_decode"):
            CONTROL.hold(P_QUEUE)  # as long as a step with other requests in it
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        if self._decodes and scheduler_output.scheduled_new_reqs:  # on D a request is new when its KV is there
            CONTROL.hold(FIRST_STEP)
        return super().build_connector_meta(scheduler_output)

    def get_transfer_results(self, *args: Any) -> Any:
        results = super().get_transfer_results(*args)
        if results.finished_recving:
            CONTROL.hold(REPORT)
        return results
