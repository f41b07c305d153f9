"""What every part of an engine process's telemetry shares: identity, span writer, samples, losses, clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.trace import SpanContext

from connector import names
from connector.carrier import Carrier
from connector.clock import PROCESS_CLOCK, Clock
from connector.ledger import Losses
from connector.metrics import STAGE_SECONDS, Samples
from connector.spans import Event, SpanWriter


@dataclass(frozen=True, slots=True)
class EngineContext:
    """Shared by the stories of one process. Instants passed to :meth:`span` are monotonic nanoseconds.

    ``engine_id`` is NIXL's, as peers know it; spans carry the engine's name, which the writer adds. ``decodes`` tells D
    from P.
    """

    engine_id: str
    writer: SpanWriter
    samples: Samples
    losses: Losses
    clock: Clock = PROCESS_CLOCK
    decodes: bool = False

    def span(
        self,
        name: str,
        carrier: Carrier,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Any] | None = None,
        *,
        parent: SpanContext | None = None,
        span_id: int | None = None,
        links: Iterable[SpanContext] = (),
        events: Sequence[Event] = (),
        error: str | None = None,
        lost: Sequence[str] = (),
    ) -> SpanContext | None:
        """Writes a span of the carrier's request, under its leg unless ``parent`` says otherwise.

        ``lost``: some of ``names.LOST_*``, what telemetry did not learn of it.
        """
        common: dict[str, Any] = {names.ATTR_MODE: carrier.mode, names.ATTR_REQUEST_ID: carrier.request_id}
        if lost:
            common[names.ATTR_INCOMPLETE] = list(lost)
        return self.writer.write(
            name,
            parent or carrier.parent(),
            self.clock.wall(start_ns),
            self.clock.wall(end_ns),
            {**common, **(attributes or {})},
            span_id=span_id,
            links=links,
            events=events,
            error=error,
        )

    def stamp_ns(self, carrier: Carrier, otherwise_ns: int) -> int:
        """The carrier's stamp on this process's monotonic clock: when prefill finished (P), when D allocated (D).

        ``otherwise_ns`` where the sender could not take it; :meth:`lost_stamp` then says so on the span.
        """
        return self.clock.monotonic(carrier.stamp_ns) if carrier.stamp_ns else otherwise_ns

    def lost_stamp(self, carrier: Carrier) -> tuple[str, ...]:
        """What a span lacks that begins at the carrier's stamp."""
        return () if carrier.stamp_ns else (names.LOST_START,)

    def takes_back(self, carrier: Carrier) -> bool:
        """Whether a transfer of the request in this engine is P's READ of what D kept (mode reuse)."""
        return carrier.mode == names.MODE_REUSE and not self.decodes

    def stage(self, carrier: Carrier, stage: str, duration_ns: int) -> None:
        """Adds one observation of a stage's metric, whether or not the request is traced."""
        self.samples.add(STAGE_SECONDS, duration_ns / 1e9, carrier.mode, stage)

    def transfer_stage(self, carrier: Carrier, stage: str, duration_ns: int) -> None:
        """As :meth:`stage`, for a stage of a transfer: P's READ of what D kept has stages of its own."""
        self.stage(carrier, names.REUSE_STAGE_PREFIX + stage if self.takes_back(carrier) else stage, duration_ns)
