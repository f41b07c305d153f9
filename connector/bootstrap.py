"""Starts a process's span pipeline, and counts exactly what it loses.

Used by the router and by the connector in every engine process. The SDK's batch processor does the exporting on
its own thread; in front of it stands :class:`AdmissionProcessor`, which refuses spans once too many wait, so that
nothing is dropped without being counted, and behind it :class:`CountingExporter`. ``OTEL_*`` variables (sampler,
headers, batch sizes, limits) are read by the SDK as usual.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NoOpTracer, Tracer

from connector import names

DEFAULT_QUEUE_SIZE = 8192  # spans
DEFAULT_EXPORT_TIMEOUT_S = 5.0
DEFAULT_SCHEDULE_DELAY_MS = 500


@dataclass(frozen=True, slots=True)
class SpanCounts:
    """How many sampled spans ended in this process and what became of them.

    ``dropped`` were refused because the queue was full, ``failed`` were handed to the exporter and not delivered,
    ``pending`` still wait. ``ended == exported + dropped + failed + pending`` always.
    """

    ended: int = 0
    exported: int = 0
    dropped: int = 0
    failed: int = 0

    @property
    def pending(self) -> int:
        return self.ended - self.exported - self.dropped - self.failed

    @property
    def lost(self) -> int:
        return self.dropped + self.failed


class _Ledger:
    """The four counts behind :class:`SpanCounts`; safe to use from any thread."""

    def __init__(self, capacity: int) -> None:
        self._lock = threading.Lock()
        self._capacity = capacity
        self._abandoned = False
        self._ended = self._exported = self._dropped = self._failed = self._taken = 0

    def admit(self) -> bool:
        with self._lock:
            self._ended += 1
            if self._abandoned or self._ended - self._dropped - self._taken > self._capacity:
                self._dropped += 1
                return False
            return True

    def take(self, count: int) -> None:
        with self._lock:
            self._taken += count

    def settle(self, count: int, delivered: bool) -> None:
        with self._lock:
            if self._abandoned:  # already counted as failed; a late answer changes nothing
                return
            if delivered:
                self._exported += count
            else:
                self._failed += count

    def abandon(self) -> None:
        """Counts everything still pending as failed: nobody will send it any more."""
        with self._lock:
            self._abandoned = True
            self._failed = self._ended - self._exported - self._dropped

    def counts(self) -> SpanCounts:
        with self._lock:
            return SpanCounts(self._ended, self._exported, self._dropped, self._failed)


class AdmissionProcessor(SpanProcessor):
    """Lets at most ``capacity`` spans wait for export; the rest are refused and counted."""

    def __init__(self, inner: SpanProcessor, ledger: _Ledger) -> None:
        self._inner = inner
        self._ledger = ledger

    def on_end(self, span: ReadableSpan) -> None:
        context = span.context
        if context is None or not context.trace_flags.sampled:
            return
        if self._ledger.admit():
            self._inner.on_end(span)

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class CountingExporter(SpanExporter):
    """Counts what the exporter behind it delivered and what it could not."""

    def __init__(self, inner: SpanExporter, ledger: _Ledger) -> None:
        self._inner = inner
        self._ledger = ledger

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._ledger.take(len(spans))
        delivered = False
        try:
            result = self._inner.export(spans)
            delivered = result is SpanExportResult.SUCCESS
            return result
        finally:
            self._ledger.settle(len(spans), delivered)

    def shutdown(self) -> None:
        self._inner.shutdown()


class SystemIds(IdGenerator):
    """Ids from the operating system's randomness.

    The SDK's own generator draws from Python's global one, which vLLM seeds alike in every engine process: P and D
    would then give the same ids to different spans of one trace.
    """

    _random = random.SystemRandom()

    def generate_span_id(self) -> int:
        return self._random.getrandbits(64) or self.generate_span_id()

    def generate_trace_id(self) -> int:
        return self._random.getrandbits(128) or self.generate_trace_id()


class Telemetry:
    """A running span pipeline: :attr:`tracer` makes spans, :meth:`counts` says what was lost."""

    def __init__(self, provider: TracerProvider | None, exporter: SpanExporter | None, ledger: _Ledger) -> None:
        self._provider = provider
        self._exporter = exporter
        self._ledger = ledger
        self.tracer: Tracer = provider.get_tracer("kvpath") if provider else NoOpTracer()

    def counts(self) -> SpanCounts:
        """Returns the exact counts so far."""
        return self._ledger.counts()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Sends what waits; returns whether it was all sent within ``timeout_s`` seconds."""
        if self._provider is None:
            return True
        return _within(lambda: self._provider.force_flush(), timeout_s)

    def shutdown(self, timeout_s: float = 2.0) -> SpanCounts:
        """Flushes for at most ``timeout_s`` seconds, gives up on the rest, and returns the final counts.

        Never raises and never blocks longer: an unreachable collector cannot hold a process open. The SDK alone
        would wait for its exporter's retries, for over a minute.
        """
        if self._provider is not None and not _within(self._provider.shutdown, timeout_s):
            assert self._exporter is not None
            _within(self._exporter.shutdown, 0.5)
        self._ledger.abandon()
        return self.counts()


def _within(call: object, timeout_s: float) -> bool:
    thread = threading.Thread(target=call, name="kvpath-telemetry-shutdown", daemon=True)  # type: ignore[arg-type]
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()


def boot_id() -> str:
    """Identifies the running kernel: processes that share it share one monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{socket.gethostname()}-unknown"


def start_telemetry(
    service_name: str,
    endpoint: str | None,
    *,
    instance_id: str = "",
    attributes: Mapping[str, str | int] | None = None,
    queue_size: int = DEFAULT_QUEUE_SIZE,
    exporter: SpanExporter | None = None,
    id_generator: IdGenerator | None = None,
) -> Telemetry:
    """Starts the pipeline of one process.

    ``endpoint`` is an OTLP/HTTP base URL (``http://host:4318``) or a full ``/v1/traces`` URL; ``None`` with no
    ``exporter`` turns tracing off and makes every call a no-op. ``instance_id`` becomes ``service.instance.id``.
    Raises ``ValueError`` for an endpoint that is not HTTP. Tests inject ``exporter``.
    """
    ledger = _Ledger(queue_size)
    if exporter is None:
        if endpoint is None:
            return Telemetry(None, None, ledger)
        exporter = OTLPSpanExporter(endpoint=traces_url(endpoint), timeout=DEFAULT_EXPORT_TIMEOUT_S)
    resource = Resource.create(
        {
            "service.name": service_name,
            "service.namespace": "kvpath",
            "service.instance.id": instance_id or f"{socket.gethostname()}-{os.getpid()}",
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
            names.ATTR_BOOT_ID: boot_id(),
            **(attributes or {}),
        }
    )
    provider = TracerProvider(resource=resource, id_generator=id_generator or SystemIds(), shutdown_on_exit=False)
    counting = CountingExporter(exporter, ledger)
    batch = BatchSpanProcessor(
        counting,
        max_queue_size=queue_size,
        max_export_batch_size=min(512, queue_size),
        schedule_delay_millis=DEFAULT_SCHEDULE_DELAY_MS,
    )
    provider.add_span_processor(AdmissionProcessor(batch, ledger))
    return Telemetry(provider, exporter, ledger)


def traces_url(endpoint: str) -> str:
    """Completes an OTLP/HTTP base URL with ``/v1/traces``; raises ``ValueError`` when it is not HTTP."""
    if not endpoint.startswith(("http://", "https://")):
        raise ValueError(f"OTLP endpoint {endpoint!r} is not an HTTP URL; kvpath exports OTLP/HTTP (port 4318)")
    trimmed = endpoint.rstrip("/")
    return trimmed if trimmed.endswith("/v1/traces") else f"{trimmed}/v1/traces"
