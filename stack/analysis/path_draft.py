"""The pieces that a critical path is made of, and a plan of them while it is being made. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from stack.analysis.trace import Span


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the path that one stage covers, in nanoseconds on the router's clock."""

    stage: str
    start_ns: int
    end_ns: int
    span_id: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The pieces in path order, and what could not be found for it."""

    pieces: tuple[Piece, ...]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    last_arrival: str | None = None
    flight_uncertainty_ns: int = 0


@dataclass(slots=True)
class Draft:
    """A plan while it is being made."""

    pieces: list[Piece] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    last_arrival: str | None = None
    flight_uncertainty_ns: int = 0

    def add(self, stage: str, start_ns: int | None, end_ns: int | None, span: Span | None = None) -> None:
        if start_ns is not None and end_ns is not None:
            self.pieces.append(Piece(stage, start_ns, end_ns, span.span_id if span else ""))

    def need(self, span: Span | None, name: str) -> Span | None:
        if span is None:
            self.missing.append(name)
        return span

    def whole(self, stage: str, span: Span | None, name: str) -> None:
        if self.need(span, name) is not None:
            assert span is not None
            self.add(stage, span.start_ns, span.end_ns, span)

    def done(self) -> Plan:
        return Plan(
            tuple(self.pieces),
            tuple(self.missing),
            tuple(self.notes),
            self.last_arrival,
            self.flight_uncertainty_ns,
        )
