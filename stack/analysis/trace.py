"""The one in-memory model of a trace, between readers (OTLP JSON, Tempo's API) and the pure analysis functions.

Ids are lower-case hex, times are integer nanoseconds of the wall clock *of the process that made the span*: times
of two hosts can be compared only after :mod:`stack.analysis.clock` has aligned them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from connector import names

AttributeValue: TypeAlias = (
    "str | bool | int | float | bytes | tuple[AttributeValue, ...] | Mapping[str, AttributeValue] | None"
)
Attributes: TypeAlias = Mapping[str, AttributeValue]

STATUS_UNSET, STATUS_OK, STATUS_ERROR = 0, 1, 2
KIND_UNSPECIFIED, KIND_INTERNAL, KIND_SERVER, KIND_CLIENT, KIND_PRODUCER, KIND_CONSUMER = range(6)


@dataclass(frozen=True, slots=True)
class Event:
    """An instant on a span."""

    name: str
    time_ns: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Link:
    """Causality that is not parentage: registration → WRITE → completion."""

    trace_id: str
    span_id: str
    attributes: Attributes = field(default_factory=dict)
    trace_state: str = ""
    flags: int = 0


@dataclass(frozen=True, slots=True)
class Resource:
    """The process that made a span."""

    attributes: Attributes = field(default_factory=dict)

    def text(self, key: str) -> str:
        """Returns a resource attribute as text, "" when it is absent."""
        value = self.attributes.get(key)
        return "" if value is None else str(value)

    @property
    def service_name(self) -> str:
        return self.text("service.name")

    @property
    def instance_id(self) -> str:
        return self.text("service.instance.id")

    @property
    def host_name(self) -> str:
        return self.text("host.name")

    @property
    def boot_id(self) -> str:
        return self.text(names.ATTR_BOOT_ID)


@dataclass(frozen=True, slots=True)
class Scope:
    """The instrumentation that made a span."""

    name: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """One span; ``parent_span_id`` is "" for a root."""

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    start_ns: int
    end_ns: int
    kind: int = KIND_INTERNAL
    attributes: Attributes = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    links: tuple[Link, ...] = ()
    status_code: int = STATUS_UNSET
    status_message: str = ""
    resource: Resource = field(default_factory=Resource)
    scope: Scope = field(default_factory=Scope)
    trace_state: str = ""
    flags: int = 0

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def failed(self) -> bool:
        return self.status_code == STATUS_ERROR

    def event_time(self, name: str) -> int | None:
        """Returns when the first event of that name happened, in nanoseconds, or ``None``."""
        for event in self.events:
            if event.name == name:
                return event.time_ns
        return None

    def shifted(self, offset_ns: int) -> Span:
        """Returns the same span with every time moved by ``offset_ns``."""
        if offset_ns == 0:
            return self
        events = tuple(Event(e.name, e.time_ns + offset_ns, e.attributes) for e in self.events)
        return replace(self, start_ns=self.start_ns + offset_ns, end_ns=self.end_ns + offset_ns, events=events)


@dataclass(frozen=True, slots=True)
class Trace:
    """All spans of one request, in the order in which they were read."""

    trace_id: str
    spans: tuple[Span, ...]

    def named(self) -> dict[str, list[Span]]:
        """Returns the spans by name, each list in start order."""
        by_name: dict[str, list[Span]] = {}
        for span in sorted(self.spans, key=lambda s: (s.start_ns, s.span_id)):
            by_name.setdefault(span.name, []).append(span)
        return by_name

    def server_span(self) -> Span | None:
        """Returns the router's SERVER span: the root, or the child of a client's span that is not ours to see."""
        servers = [s for s in self.spans if s.kind == KIND_SERVER and s.resource.service_name == names.SERVICE_ROUTER]
        return min(servers, key=lambda s: (s.start_ns, s.span_id), default=None)
