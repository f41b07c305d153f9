"""Tempo's tag discovery: which attributes and values occur, for query editors to complete.

Indexed fields answer from the index, exactly; all others from the newest traces, as Tempo answers from recent data.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from stack.store.errors import BadRequestError
from stack.store.evaluate import SpanView, Value, value_of
from stack.store.otlp import INDEXED_ATTRIBUTES, TERM_NAME
from stack.store.plan import Plan
from stack.store.reader import Window, candidates, decode, reading, term_values, views
from stack.store.traceql import Intrinsic, Kind, Status

RECENT_TRACES = 200
MAX_VALUES = 1000
SCOPES = ("span", "resource", "intrinsic")

_FIXED = {
    Intrinsic.STATUS: [item.name.lower() for item in Status],
    Intrinsic.KIND: [item.name.lower() for item in Kind],
}


def tag_names(path: Path, scope: str) -> dict[str, list[str]]:
    """Returns attribute names by scope, sorted; ``scope`` empty or ``none`` means all. Raises BadRequestError."""
    wanted = SCOPES if scope in ("", "none", "all") else (scope,)
    if wanted[0] not in SCOPES:
        raise BadRequestError(f"scope {scope!r} is not supported; use one of {', '.join(SCOPES)}")
    found: dict[str, set[str]] = {"span": set(), "resource": set(), "intrinsic": {str(item) for item in Intrinsic}}
    if wanted != ("intrinsic",):
        for view in _recent(path):
            found["span"].update(view.attributes)
            found["resource"].update(view.resource)
    return {name: sorted(found[name]) for name in wanted}


def tag_values(path: Path, tag: str) -> list[dict[str, str]]:
    """Returns the values of a tag as ``{"type", "value"}``. ``tag`` is ``.a``, ``span.a``, ``resource.a``, a bare
    name or an intrinsic.
    """
    scope, name = _split(tag)
    if not scope and name in _FIXED:
        return [{"type": "keyword", "value": value} for value in _FIXED[Intrinsic(name)]]
    if name in INDEXED_ATTRIBUTES or (not scope and name == TERM_NAME):
        with reading(path) as connection:
            values: set[Any] = set(term_values(connection, name, MAX_VALUES))
    else:
        values = set(islice(_recent_values(path, scope, name), MAX_VALUES))
    return sorted(({"type": _type(value), "value": _text(value)} for value in values), key=lambda item: item["value"])


def _split(tag: str) -> tuple[str, str]:
    for scope in ("span.", "resource.", "."):
        if tag.startswith(scope) and len(tag) > len(scope):
            return scope, tag.removeprefix(scope)
    return "", tag


def _recent(path: Path) -> Iterator[SpanView]:
    with reading(path) as connection:
        for candidate in islice(candidates(connection, Plan(), Window()), RECENT_TRACES):
            yield from views(decode(candidate.data), candidate.summary)


def _recent_values(path: Path, scope: str, name: str) -> Iterator[Value]:
    seen: set[Value] = set()
    intrinsic = Intrinsic(name) if not scope and name in set(Intrinsic) else None
    for view in _recent(path):
        holders = [] if scope == "resource." else [view.attributes]
        holders += [] if scope == "span." else [view.resource]
        found = [view.get(intrinsic)] if intrinsic else [value_of(holder.get(name)) for holder in holders]
        for value in found:
            for item in value if isinstance(value, list) else [value]:
                if item is not None and not isinstance(item, list) and item not in seen:
                    seen.add(item)
                    yield item


def _type(value: Value) -> str:
    return {bool: "bool", int: "int", float: "float"}.get(type(value), "string")


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
