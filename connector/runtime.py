"""One telemetry runtime per engine process, shared by every traced connector in it.

A process may hold a scheduler's and a worker's connector (one GPU, one process), each with a push and a pull child:
all of them record into one ledger, drained by one thread, exported by one pipeline. The last one to release the
runtime shuts it down.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from connector import names
from connector.bootstrap import DEFAULT_QUEUE_SIZE, Telemetry, start_telemetry
from connector.engine_context import EngineContext
from connector.ledger import DEFAULT_CAPACITY, Ledger
from connector.metrics import Samples
from connector.spans import PresetIds, SpanWriter

logger = logging.getLogger(__name__)

OPTION_INSTANCE = "kvpath_instance"  # the engine's name on spans; absent: its NIXL engine id
OPTION_ENDPOINT = "kvpath_otlp_endpoint"  # OTLP/HTTP base URL; absent or null: no spans, metrics only
OPTION_FACT_CAPACITY = "kvpath_fact_capacity"
OPTION_SPAN_QUEUE = "kvpath_span_queue"
LOSS_REPORT_INTERVAL_NS = 1_000_000_000


class Runtime:
    """The ledger, samples and span pipeline of one engine process."""

    def __init__(self, service: str, engine_id: str, options: Mapping[str, Any]) -> None:
        ids = PresetIds()
        self.instance = str(options.get(OPTION_INSTANCE) or engine_id)
        self.telemetry: Telemetry = start_telemetry(
            service,
            options.get(OPTION_ENDPOINT),
            instance_id=self.instance,
            id_generator=ids,
            queue_size=int(options.get(OPTION_SPAN_QUEUE, DEFAULT_QUEUE_SIZE)),
        )
        self.ledger = Ledger(int(options.get(OPTION_FACT_CAPACITY, DEFAULT_CAPACITY)))
        self.samples = Samples()
        writer = SpanWriter(self.telemetry.tracer, ids, {names.ATTR_ENGINE_ID: self.instance})
        decodes = service == names.SERVICE_DECODE
        self.context = EngineContext(engine_id, writer, self.samples, self.ledger.losses, decodes=decodes)
        self._next_report_ns = 0
        self.ledger.on_idle(self._report_losses)
        self.ledger.start()

    def _report_losses(self, at_ns: int) -> None:
        if at_ns >= self._next_report_ns:
            self._next_report_ns = at_ns + LOSS_REPORT_INTERVAL_NS
            self.samples.report_losses(self.ledger.losses, self.telemetry.counts())

    def close(self) -> None:
        self.ledger.stop()
        counts = self.telemetry.shutdown()
        if counts.lost:
            logger.warning(
                "kvpath lost %d of %d spans (%d refused by a full queue, %d not delivered); is the OTLP endpoint up?",
                counts.lost,
                counts.ended,
                counts.dropped,
                counts.failed,
            )


_lock = threading.Lock()
_runtime: Runtime | None = None
_users = 0


class Use:
    """One use of the process's runtime; releasing it twice is releasing it once."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._held = True

    def release(self) -> None:
        """Gives up this use; the last one closes the runtime. Blocks for less than 5 s."""
        with _lock:
            held, self._held = self._held, False
        if held:
            _release()


def acquire(make: Callable[[], Runtime]) -> Use:
    """Takes a use of the process's runtime, making the runtime first if there is none."""
    global _runtime, _users
    with _lock:
        if _runtime is None:
            _runtime = make()
        _users += 1
        return Use(_runtime)


def _release() -> None:
    global _runtime, _users
    with _lock:
        _users -= 1
        last, runtime = _users == 0, _runtime
        if last:
            _runtime = None
    if last and runtime is not None:
        runtime.close()
