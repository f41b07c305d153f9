"""Decides whether a decoded span satisfies a TraceQL expression.

As in Tempo: a missing attribute and a value of another type match nothing, not even ``!=``; regular expressions match
the whole value; an unscoped attribute is the span's, or else the resource's.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from stack.store.traceql import (
    And,
    Attribute,
    Comparison,
    Duration,
    Expression,
    Field,
    Intrinsic,
    Kind,
    Literal,
    Nil,
    Scope,
    Status,
)

Value = str | int | float | bool | Status | Kind | list["Value"] | None
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """A trace's row. ``key`` is its internal number; times in Unix nanoseconds; no root span yet: names are None."""

    key: int
    trace_id: bytes
    start_ns: int
    end_ns: int
    root_name: str | None
    root_service: str | None


class SpanView:
    """One span with its resource and trace, attributes decoded when first asked for."""

    def __init__(self, span: Span, resource: dict[str, AnyValue], trace: TraceSummary) -> None:
        self.span = span
        self.resource = resource
        self.trace = trace

    @cached_property
    def attributes(self) -> dict[str, AnyValue]:
        return by_key(self.span.attributes)

    @property
    def duration_ns(self) -> int:
        return self.span.end_time_unix_nano - self.span.start_time_unix_nano

    def find(self, attribute: Attribute) -> AnyValue | None:
        """Returns the attribute's OTLP value in its scope; None when there is none."""
        found = None if attribute.scope is Scope.RESOURCE else self.attributes.get(attribute.name)
        if found is None and attribute.scope is not Scope.SPAN:
            found = self.resource.get(attribute.name)
        return found

    def get(self, field: Field) -> Value:
        """Returns a field's value; None when it is missing."""
        if isinstance(field, Attribute):
            return value_of(self.find(field))
        return _INTRINSIC_VALUES[field](self)


def _enum_value(enum: type[Kind] | type[Status], number: int) -> Value:
    return enum(number) if number in {item.value for item in enum} else None


_INTRINSIC_VALUES: dict[Intrinsic, Callable[[SpanView], Value]] = {
    Intrinsic.NAME: lambda view: view.span.name,
    Intrinsic.STATUS: lambda view: _enum_value(Status, view.span.status.code),
    Intrinsic.STATUS_MESSAGE: lambda view: view.span.status.message,
    Intrinsic.DURATION: lambda view: view.duration_ns,
    Intrinsic.KIND: lambda view: _enum_value(Kind, view.span.kind),
    Intrinsic.SPAN_ID: lambda view: view.span.span_id.hex(),
    Intrinsic.TRACE_ID: lambda view: view.trace.trace_id.hex(),
    Intrinsic.ROOT_NAME: lambda view: view.trace.root_name,
    Intrinsic.ROOT_SERVICE: lambda view: view.trace.root_service,
    Intrinsic.TRACE_DURATION: lambda view: view.trace.end_ns - view.trace.start_ns,
}


def by_key(attributes: Iterable[KeyValue]) -> dict[str, AnyValue]:
    """Returns OTLP attributes by key."""
    return {attribute.key: attribute.value for attribute in attributes}


def value_of(value: AnyValue | None) -> Value:
    """Returns an OTLP value as Python's; None for what TraceQL cannot compare (maps, bytes)."""
    kind = value.WhichOneof("value") if value is not None else None
    if value is None or kind in (None, "kvlist_value", "bytes_value"):
        return None
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    return getattr(value, kind)


def compile_filter(expression: Expression | None) -> Callable[[SpanView], bool]:
    """Returns the predicate that ``expression`` describes; ``None`` is true of every span."""
    if expression is None:
        return lambda view: True
    if isinstance(expression, Comparison):
        return _comparison(expression)
    parts = [compile_filter(part) for part in expression.parts]
    if isinstance(expression, And):
        return lambda view: all(part(view) for part in parts)
    return lambda view: any(part(view) for part in parts)


def fields_of(expression: Expression | None) -> list[Field]:
    """Returns the fields an expression names, in order, each once."""
    if expression is None:
        return []
    if isinstance(expression, Comparison):
        return [expression.field]
    return list(dict.fromkeys(field for part in expression.parts for field in fields_of(part)))


def _comparison(comparison: Comparison) -> Callable[[SpanView], bool]:
    field, symbol, value = comparison.field, comparison.operator, comparison.value
    if value is Nil.NIL:
        wanted = symbol == "="
        return lambda view: (view.get(field) is None) is wanted
    test = _regex_test(symbol, str(value)) if symbol in ("=~", "!~") else _ordered_test(symbol, value)
    combine = all if symbol in ("!=", "!~") else any  # of a list attribute, any element may match, or none

    def matches(view: SpanView) -> bool:
        actual = view.get(field)
        if isinstance(actual, list):
            return bool(actual) and combine(test(item) for item in actual)
        return test(actual)

    return matches


def _ordered_test(symbol: str, value: Literal) -> Callable[[Value], bool]:
    expected = value.ns if isinstance(value, Duration) else value
    kind = _kind(expected)
    compare = _ORDER[symbol]
    return lambda actual: _kind(actual) is kind and compare(actual, expected)


def _kind(value: object) -> type | None:
    """Returns the type within which values compare: integers and floats are one, booleans another."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float
    return None if value is None else type(value)


def _regex_test(symbol: str, pattern: str) -> Callable[[Value], bool]:
    matcher = re.compile(pattern, re.DOTALL)
    wanted = symbol == "=~"
    return lambda actual: isinstance(actual, str) and (matcher.fullmatch(actual) is not None) is wanted
