"""Tempo's older search by ``tags``: logfmt pairs, each a case-insensitive substring of some attribute in the trace."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from stack.store.errors import BadRequestError
from stack.store.evaluate import SpanView, value_of
from stack.store.traceql import Intrinsic, Status
from stack.store.traceql_tokens import string_of

_PAIR = re.compile(r'\s*([^\s="]+)=("(?:[^"\\]|\\.)*"|[^\s"]*)(?:\s|$)', re.DOTALL)
_ROOT = {"root.name": Intrinsic.ROOT_NAME, "root.service.name": Intrinsic.ROOT_SERVICE}


@dataclass(frozen=True, slots=True)
class TagQuery:
    """Pairs of attribute and wanted substring. ``name``, ``status``, ``root.name`` and ``root.service.name`` too."""

    pairs: tuple[tuple[str, str], ...] = ()

    def matches(self, spans: list[SpanView]) -> bool:
        """Returns whether each pair holds somewhere among a trace's spans and resources."""
        return all(any(_holds(view, key, wanted) for view in spans) for key, wanted in self.pairs)


def parse_tags(text: str) -> TagQuery:
    """Reads logfmt (``service.name=router name="a b"``); raises BadRequestError."""
    pairs, position = [], 0
    while text[position:].strip():
        match = _PAIR.match(text, position)
        if match is None:
            raise BadRequestError(
                f"tags: {text[position:].strip()!r} is not logfmt (key=value pairs, quoted if spaced)"
            )
        value = match.group(2)
        pairs.append((match.group(1), (string_of(value) if value.startswith('"') else value).lower()))
        position = match.end()
    return TagQuery(tuple(pairs))


def _holds(view: SpanView, key: str, wanted: str) -> bool:
    return any(wanted in text.lower() for text in _texts(view, key))


def _texts(view: SpanView, key: str) -> Iterable[str]:
    if key == Intrinsic.NAME:
        yield view.span.name
    elif key == Intrinsic.STATUS:
        status = view.get(Intrinsic.STATUS)
        yield status.name if isinstance(status, Status) else ""
    elif key in _ROOT:
        yield str(view.get(_ROOT[key]) or "")
    for holder in (view.attributes, view.resource):
        value = value_of(holder.get(key))
        for item in value if isinstance(value, list) else [value]:
            if item is not None:
                yield str(item).lower() if isinstance(item, bool) else str(item)
