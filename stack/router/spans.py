"""Spans that cannot fail a request: explicit start, parent and end; every exception is counted and swallowed.

Nothing is attached to the current context, so that a cancelled stream has nothing to detach. Instants are monotonic
nanoseconds of the process, turned into wall time by its one anchor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from connector import names
from connector.clock import PROCESS_CLOCK, now

Value = str | int | float | bool | list[str]
_PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(slots=True)
class TelemetryErrors:
    """How many exceptions of telemetry were swallowed in this process."""

    count: int = 0


class RouterSpan:
    """One span, or nothing at all when telemetry failed; both behave the same."""

    __slots__ = ("_ended", "_errors", "_span", "_tracer")

    def __init__(self, span: Span | None, tracer: Tracer, errors: TelemetryErrors) -> None:
        self._span = span
        self._tracer = tracer
        self._errors = errors
        self._ended = False

    def child(
        self,
        name: str,
        attributes: Mapping[str, Value],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        start_ns: int | None = None,
    ) -> RouterSpan:
        """Starts a child; ``start_ns`` is monotonic and defaults to now."""
        if self._span is None:
            return self
        try:
            context = trace.set_span_in_context(self._span, Context())
            span = self._tracer.start_span(
                name, context, kind, dict(attributes), start_time=PROCESS_CLOCK.wall(start_ns or now())
            )
            return RouterSpan(span, self._tracer, self._errors)
        except Exception:
            self._errors.count += 1
            return RouterSpan(None, self._tracer, self._errors)

    def set(self, key: str, value: Value) -> None:
        if self._span is None:
            return
        try:
            self._span.set_attribute(key, value)
        except Exception:
            self._errors.count += 1

    def event(self, name: str, at_ns: int) -> None:
        if self._span is None:
            return
        try:
            self._span.add_event(name, timestamp=PROCESS_CLOCK.wall(at_ns))
        except Exception:
            self._errors.count += 1

    def fail(self, error_type: str) -> None:
        """Sets status ERROR and ``error.type``."""
        if self._span is None:
            return
        try:
            self._span.set_attribute(names.ATTR_ERROR_TYPE, error_type)
            self._span.set_status(Status(StatusCode.ERROR, error_type))
        except Exception:
            self._errors.count += 1

    def end(self, at_ns: int | None = None) -> None:
        """Ends the span once; later calls do nothing."""
        if self._span is None or self._ended:
            return
        self._ended = True
        try:
            self._span.end(PROCESS_CLOCK.wall(at_ns or now()))
        except Exception:
            self._errors.count += 1

    def carrier(self) -> dict[str, str]:
        """Returns ``traceparent`` (and ``tracestate`` when there is one) of this span; empty without a trace."""
        if self._span is None:
            return {}
        try:
            carrier: dict[str, str] = {}
            _PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span, Context()))
            return carrier
        except Exception:
            self._errors.count += 1
            return {}

    def trace_id(self) -> str | None:
        """Returns the trace id, 32 hex digits, when the trace is recorded."""
        if self._span is None:
            return None
        try:
            context = self._span.get_span_context()
            return f"{context.trace_id:032x}" if context.is_valid and context.trace_flags.sampled else None
        except Exception:
            self._errors.count += 1
            return None


class Spans:
    """Starts the SERVER span of each request."""

    def __init__(self, tracer: Tracer, errors: TelemetryErrors) -> None:
        self._tracer = tracer
        self.errors = errors

    def server(
        self, name: str, headers: Mapping[bytes, bytes], attributes: Mapping[str, Value], start_ns: int
    ) -> RouterSpan:
        """Starts the root, or the child of the client's ``traceparent`` when it sent a valid one."""
        try:
            carrier = {
                key: headers[key.encode()].decode("latin-1")
                for key in (names.HEADER_TRACEPARENT, names.HEADER_TRACESTATE)
                if key.encode() in headers
            }
            context = _PROPAGATOR.extract(carrier, Context())
            span = self._tracer.start_span(
                name, context, SpanKind.SERVER, dict(attributes), start_time=PROCESS_CLOCK.wall(start_ns)
            )
            return RouterSpan(span, self._tracer, self.errors)
        except Exception:
            self.errors.count += 1
            return RouterSpan(None, self._tracer, self.errors)
