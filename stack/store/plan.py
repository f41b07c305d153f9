"""What a TraceQL expression implies for the index: conditions in SQL that every matching trace meets.

The conditions are necessary, not sufficient: they hold of the whole trace, while an expression must hold on one span.
``evaluate`` decides on the decoded spans; this module only keeps traces from being decoded for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stack.store.otlp import INDEXED_ATTRIBUTES, TERM_CHARACTERS, TERM_NAME, TERM_STATUS, Term
from stack.store.traceql import (
    And,
    Attribute,
    Comparison,
    Duration,
    Expression,
    Intrinsic,
    Nil,
    Status,
)

_POSTED = "EXISTS (SELECT 1 FROM posting p WHERE p.key = ? AND p.value = ? AND p.trace = t.id)"
_COLUMNS = {Intrinsic.ROOT_NAME: "t.root_name", Intrinsic.ROOT_SERVICE: "t.root_service"}
_ORDERED = {"=": "=", ">": ">", ">=": ">=", "<": "<", "<=": "<="}


@dataclass(frozen=True, slots=True)
class Plan:
    """``sql`` with its ``parameters`` is a condition on ``trace t``; ``terms`` are indexed values every matching trace
    contains; ``needles`` are byte strings its serialised spans contain.
    """

    sql: str = "1"
    parameters: tuple[str | int | float, ...] = ()
    terms: tuple[Term, ...] = ()
    needles: tuple[bytes, ...] = field(default=())


def plan(expression: Expression | None) -> Plan:
    """Returns what the index can do for ``expression``."""
    if expression is None:
        return Plan()
    if isinstance(expression, Comparison):
        return _comparison(expression)
    parts = [plan(part) for part in expression.parts]
    parameters = tuple(value for part in parts for value in part.parameters)
    if isinstance(expression, And):
        return Plan(
            " AND ".join(part.sql for part in parts),
            parameters,
            tuple(term for part in parts for term in part.terms),
            tuple(needle for part in parts for needle in part.needles),
        )
    return Plan("(" + " OR ".join(f"({part.sql})" for part in parts) + ")", parameters)


def _comparison(comparison: Comparison) -> Plan:
    term = _term(comparison)
    if term is not None:
        return Plan(_POSTED, term, (term,))
    field_, operator, value = comparison.field, comparison.operator, comparison.value
    if isinstance(field_, Attribute):
        return _needles(field_, operator, value)
    if field_ in _COLUMNS and operator == "=" and isinstance(value, str):
        return Plan(f"{_COLUMNS[field_]} = ?", (value,))
    if field_ is Intrinsic.TRACE_DURATION and operator in _ORDERED:
        limit = value.ns if isinstance(value, Duration) else value
        if isinstance(limit, int) and abs(limit) < 2**63:
            return Plan(f"(t.end_ns - t.start_ns) {_ORDERED[operator]} ?", (limit,))
    return Plan()


def _term(comparison: Comparison) -> Term | None:
    if comparison.operator != "=":
        return None
    field_, value = comparison.field, comparison.value
    if field_ is Intrinsic.STATUS and isinstance(value, Status) and value is not Status.UNSET:
        return TERM_STATUS, value.name.lower()
    if not isinstance(value, str):
        return None
    if field_ is Intrinsic.NAME:
        return TERM_NAME, value[:TERM_CHARACTERS]
    if isinstance(field_, Attribute) and field_.name in INDEXED_ATTRIBUTES:
        return field_.name, value[:TERM_CHARACTERS]
    return None


def _needles(attribute: Attribute, operator: str, value: object) -> Plan:
    if value is Nil.NIL and operator == "=":
        return Plan()
    found = [attribute.name.encode()]
    if isinstance(value, str) and operator == "=":
        found.append(value.encode())
    return Plan(needles=tuple(found))
