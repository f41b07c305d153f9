"""The part of TraceQL this store speaks: one spanset filter, ``{ conditions }``.

::

    query      = "{" [ or ] "}"
    or         = and { "||" and }
    and        = term { "&&" term }
    term       = "(" or ")" | field operator literal
    field      = ".attr" | "span.attr" | "resource.attr" | intrinsic
    operator   = "=" | "!=" | "=~" | "!~" | ">" | ">=" | "<" | "<="

Everything else of TraceQL (pipelines, structural operators, arithmetic, other scopes) raises BadRequestError that names
the part: never a silently wrong answer. ``str(expression)`` prints what :func:`parse` reads back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, StrEnum

from stack.store.errors import BadRequestError
from stack.store.traceql_tokens import Token, duration_ns, quote, string_of, tokenize

MAX_DEPTH = 50


class Intrinsic(StrEnum):
    """Fields every span or trace has, under the name they are printed with."""

    NAME = "name"
    STATUS = "status"
    STATUS_MESSAGE = "statusMessage"
    DURATION = "duration"
    KIND = "kind"
    SPAN_ID = "span:id"
    TRACE_ID = "trace:id"
    ROOT_NAME = "rootName"
    ROOT_SERVICE = "rootServiceName"
    TRACE_DURATION = "traceDuration"


_INTRINSICS = {item.value: item for item in Intrinsic} | {
    "span:name": Intrinsic.NAME,
    "span:status": Intrinsic.STATUS,
    "span:statusMessage": Intrinsic.STATUS_MESSAGE,
    "span:duration": Intrinsic.DURATION,
    "span:kind": Intrinsic.KIND,
    "trace:rootName": Intrinsic.ROOT_NAME,
    "trace:rootService": Intrinsic.ROOT_SERVICE,
    "trace:duration": Intrinsic.TRACE_DURATION,
}


class Scope(StrEnum):
    ANY = "."  # the span's attribute, or else the resource's
    SPAN = "span."
    RESOURCE = "resource."


class Status(Enum):
    UNSET, OK, ERROR = range(3)  # OTLP's numbers


class Kind(Enum):
    UNSPECIFIED, INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = range(6)  # OTLP's numbers


class Nil(Enum):
    NIL = "nil"


_KEYWORDS: dict[str, Literal] = {
    **{item.name.lower(): item for item in Status},
    **{item.name.lower(): item for item in Kind},
    "nil": Nil.NIL,
    "true": True,
    "false": False,
}


@dataclass(frozen=True, slots=True)
class Duration:
    ns: int

    def __str__(self) -> str:
        return f"{self.ns}ns"


@dataclass(frozen=True, slots=True)
class Attribute:
    scope: Scope
    name: str

    def __str__(self) -> str:
        return f"{self.scope}{quote(self.name)}"


Field = Attribute | Intrinsic
Literal = str | int | float | bool | Duration | Status | Kind | Nil


@dataclass(frozen=True, slots=True)
class Comparison:
    field: Field
    operator: str
    value: Literal

    def __str__(self) -> str:
        return f"{self.field} {self.operator} {_print(self.value)}"


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return " && ".join(_grouped(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return " || ".join(_grouped(part) for part in self.parts)


Expression = Comparison | And | Or


def _grouped(part: Expression) -> str:
    return str(part) if isinstance(part, Comparison) else f"({part})"


def _print(value: Literal) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, Status | Kind | Nil):
        return value.name.lower()
    return str(value) if isinstance(value, Duration) else repr(value)


def to_query(expression: Expression | None) -> str:
    """Prints a query; ``None`` is ``{}``, which matches every span."""
    return "{}" if expression is None else f"{{ {expression} }}"


def parse(query: str) -> Expression | None:
    """Parses a query; ``None`` stands for ``{}``. Raises BadRequestError naming the unsupported part."""
    return _Parser(tokenize(query)).query()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def query(self) -> Expression | None:
        if self._peek().text != "{":
            raise self._refusal("a query starts with '{'")
        self._advance()
        expression = None if self._peek().text == "}" else self._or()
        self._expect("}")
        if self._peek().kind != "end":
            raise self._refusal("only one spanset filter { .. } is supported: no pipelines, no structural operators")
        return expression

    def _or(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refusal(f"more than {MAX_DEPTH} nested parentheses are not supported")
        parts = [self._and()]
        while self._peek().text == "||":
            self._advance()
            parts.append(self._and())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _and(self) -> Expression:
        parts = [self._term()]
        while self._peek().text == "&&":
            self._advance()
            parts.append(self._term())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _term(self) -> Expression:
        if self._peek().text == "(":
            self._advance()
            inner = self._or()
            self._expect(")")
            return inner
        field = self._field()
        operator = self._peek()
        if operator.kind != "operator":
            raise self._refusal("expected one of = != =~ !~ > >= < <= after a field")
        self._advance()
        literal = self._peek()
        value = self._literal()
        problem = _mismatch(field, operator.text, value)
        if problem:
            raise self._refusal(problem, literal)
        return Comparison(field, operator.text, value)

    def _field(self) -> Field:
        token = self._peek()
        if token.kind == "attribute":
            self._advance()
            prefix, _, name = token.text.partition(".")
            return Attribute(Scope(f"{prefix}."), string_of(name) if name.startswith('"') else name)
        intrinsic = _INTRINSICS.get(token.text) if token.kind == "word" else None
        if intrinsic is None:
            raise self._refusal("expected .attr, span.attr, resource.attr or one of " + ", ".join(sorted(_INTRINSICS)))
        self._advance()
        return intrinsic

    def _literal(self) -> Literal:
        token = self._peek()
        self._advance()
        if token.kind == "string":
            return string_of(token.text)
        if token.kind == "duration":
            return Duration(duration_ns(token.text))
        if token.kind == "number":
            return float(token.text) if re.search("[.eE]", token.text) else int(token.text)
        if token.kind == "word" and token.text in _KEYWORDS:
            return _KEYWORDS[token.text]
        raise self._refusal("expected a literal: string, number, duration, true, false, nil, a status or a kind", token)

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _advance(self) -> None:
        self._next = min(self._next + 1, len(self._tokens) - 1)

    def _expect(self, text: str) -> None:
        if self._peek().text != text:
            raise self._refusal(f"expected {text!r}, '&&' or '||'")
        self._advance()

    def _refusal(self, why: str, token: Token | None = None) -> BadRequestError:
        token = token or self._peek()
        found = token.text or "the end of the query"
        return BadRequestError(f"TraceQL: {found!r} at character {token.position + 1}: {why}")


def _mismatch(field: Field, operator: str, value: Literal) -> str:
    """Returns why ``operator value`` cannot be asked of ``field``; empty when it can."""
    if operator in ("=~", "!~"):
        return _regex_problem(value)
    if isinstance(value, bool | Status | Kind | Nil) and operator not in ("=", "!="):
        return f"{_print(value)} can be compared with = and != only"
    match field:
        case Intrinsic.STATUS:
            return "" if isinstance(value, Status) else "status is error, ok or unset"
        case Intrinsic.KIND:
            return "" if isinstance(value, Kind) else "kind is one of " + ", ".join(k.name.lower() for k in Kind)
        case Intrinsic.DURATION | Intrinsic.TRACE_DURATION:
            numeric = isinstance(value, Duration | int | float) and not isinstance(value, bool)
            return "" if numeric else "a duration is written like 10ms or 1.5s"
        case Intrinsic():
            return "" if isinstance(value, str) else f"{field} is compared with a string"
        case _:
            return "a status or a kind is compared with status or kind" if isinstance(value, Status | Kind) else ""


def _regex_problem(value: Literal) -> str:
    if not isinstance(value, str):
        return "a regular expression is a string"
    if re.search(r"\(\?(?:[=!>]|<[=!]|P[=>])|\\[1-9]|[*+?}]\+", value):
        return "look-around, back references and possessive or atomic groups are not in RE2, which TraceQL uses"
    try:
        re.compile(value, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        return f"not a regular expression: {error}"
    return ""
