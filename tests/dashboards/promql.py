"""Reads PromQL and says what it asks for: the series and labels in it, and the labels of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import promql_parser as parser

Labels = frozenset[str]


class UnknownError(AssertionError):
    """An expression names a series or a label that nothing exposes."""


def labels_of(expr: str, known: Mapping[str, Labels]) -> Labels:
    """Returns the labels of the answer; raises UnknownError for what ``known`` lacks, ValueError for bad PromQL."""
    return _Reader(expr, known).labels(parser.parse(expr))


class _Reader:
    def __init__(self, expr: str, known: Mapping[str, Labels]) -> None:
        self._expr = expr
        self._known = known

    def labels(self, node: Any) -> Labels:
        match type(node).__name__:
            case "VectorSelector":
                return self._selector(node)
            case "MatrixSelector":
                return self._selector(node.vector_selector)
            case "SubqueryExpr" | "ParenExpr" | "UnaryExpr":
                return self.labels(node.expr)
            case "AggregateExpr":
                inner = self.labels(node.expr)
                by = frozenset(node.modifier.labels) if node.modifier else frozenset[str]()
                self._require(by, inner, "aggregates by")
                return by
            case "Call":
                return self._call(node)
            case "BinaryExpr":
                return self._binary(node)
            case "NumberLiteral" | "StringLiteral":
                return frozenset()
            case other:
                raise TypeError(f"no idea what {other} does with labels")

    def _selector(self, node: Any) -> Labels:
        if node.name not in self._known:
            raise UnknownError(f"nothing exposes {node.name}: {self._expr}")
        self._require({matcher.name for matcher in node.matchers.matchers}, self._known[node.name], "matches")
        return self._known[node.name]

    def _call(self, node: Any) -> Labels:
        name = node.func.name
        if name == "label_replace":
            return self.labels(node.args[0]) | {node.args[1].val}
        vectors = [self.labels(arg) for arg in node.args]
        inner = frozenset[str]().union(*vectors)
        if name == "histogram_quantile":
            self._require({"le"}, inner, "takes a quantile over")
            return inner - {"le"}
        return inner

    def _binary(self, node: Any) -> Labels:
        left, right = self.labels(node.lhs), self.labels(node.rhs)
        matching = node.modifier.matching if node.modifier else None
        if matching is not None:
            self._require(matching.labels, left, "matches on the left")
            self._require(matching.labels, right, "matches on the right")
            many_to_one = node.modifier.card == parser.VectorMatchCardinality.ManyToOne
            sets = node.modifier.card == parser.VectorMatchCardinality.ManyToMany
            return left if many_to_one or sets else frozenset(matching.labels)
        scalar = "NumberLiteral" in (type(node.lhs).__name__, type(node.rhs).__name__)
        if not scalar and left != right:
            raise UnknownError(f"sides with labels {set(left)} and {set(right)} never match: {self._expr}")
        return left | right

    def _require(self, asked: Any, there: Labels, what: str) -> None:
        missing = set(asked) - there
        if missing:
            raise UnknownError(f"{what} {sorted(missing)}, which {sorted(there)} lacks: {self._expr}")
