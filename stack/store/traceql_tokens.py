"""TraceQL's tokens and literals: strings, numbers, durations, attribute names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from stack.store.errors import BadRequestError

MAX_QUERY_CHARACTERS = 8192

_SUBSET = "a query is one spanset filter { .. } with no pipelines, structural operators, arithmetic or negation"
_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_ESCAPES = {"\\": "\\", '"': '"', "n": "\n", "t": "\t", "r": "\r"}
_STRING = r'"(?:[^"\\]|\\.)*"'
_AMOUNT = r"\d+(?:\.\d+)?"
_DURATION = rf"-?(?:{_AMOUNT}(?:ns|us|µs|ms|s|m|h))+"
_TOKEN = re.compile(
    rf"""(?P<space>\s+)
    |(?P<string>{_STRING}|`[^`]*`)
    |(?P<attribute>(?:span|resource)?\.(?:{_STRING}|[^\s{{}}()=~!<>&|^,"`\\]+))
    |(?P<duration>{_DURATION})
    |(?P<number>-?{_AMOUNT}(?:[eE][+-]?\d+)?)
    |(?P<operator>!=|=~|!~|>=|<=|=|>|<)(?![=~])
    |(?P<sign>&&|\|\||[{{}}()])
    |(?P<word>[A-Za-z_][\w:.\-]*)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # string, attribute, duration, number, operator, sign, word, end
    text: str
    position: int


def tokenize(query: str) -> list[Token]:
    """Splits a query; the last token has kind ``end``. Raises BadRequestError where nothing fits."""
    if len(query) > MAX_QUERY_CHARACTERS:
        raise BadRequestError(f"TraceQL: the query is longer than {MAX_QUERY_CHARACTERS} characters")
    tokens, position = [], 0
    while position < len(query):
        match = _TOKEN.match(query, position)
        if match is None or match.lastgroup is None:
            raise BadRequestError(
                f"TraceQL: {query[position]!r} at character {position + 1} is not supported: {_SUBSET}"
            )
        if match.lastgroup != "space":
            tokens.append(Token(match.lastgroup, match.group(), position))
        position = match.end()
    tokens.append(Token("end", "", position))
    return tokens


def string_of(text: str) -> str:
    """Returns what a quoted string says; raises BadRequestError for an escape that is not supported."""
    if text.startswith("`"):
        return text[1:-1]

    def unescape(match: re.Match[str]) -> str:
        if match.group(1) not in _ESCAPES:
            raise BadRequestError(
                f"TraceQL: the escape {match.group()!r} in a string is not supported; use a `raw string`"
            )
        return _ESCAPES[match.group(1)]

    return re.sub(r"\\(.)", unescape, text[1:-1], flags=re.DOTALL)


def quote(text: str) -> str:
    """The inverse of :func:`string_of`."""
    for escape, character in _ESCAPES.items():
        text = text.replace(character, f"\\{escape}")
    return f'"{text}"'


def duration_ns(text: str) -> int:
    """Reads ``1.5s``, ``100ms``, ``1h30m`` in nanoseconds; raises BadRequestError for anything else."""
    if not re.fullmatch(_DURATION, text):
        raise BadRequestError(f"{text!r} is not a duration such as 100ms, 1.5s or 1h30m")
    total = sum(
        Fraction(amount) * _UNITS[unit] for amount, unit in re.findall(rf"({_AMOUNT})(ns|us|µs|ms|s|m|h)", text)
    )
    return int(-total if text.startswith("-") else total)
