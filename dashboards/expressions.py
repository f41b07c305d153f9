"""Every PromQL expression of the dashboards, ready for a Prometheus: no Grafana variable is left."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dashboards.boards import BOARDS
from dashboards.model import Board, Query
from dashboards.queries.push_pull import SPLIT_CHANGES
from dashboards.settings import RANGE, WINDOW

REF_IDS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Expression:
    """``expects_data``: under load in every mode that is served, the answer is not empty."""

    dashboard: str  # uid
    panel: str  # title
    ref: str
    expr: str
    expects_data: bool


def expressions(window: str = "1m", boards: Iterable[Board] = BOARDS) -> list[Expression]:
    """Returns all expressions of the dashboards; ``window`` stands for every interval that Grafana would choose."""
    found = []
    for board in boards:
        found.append(Expression(board.uid, "(annotation)", "A", SPLIT_CHANGES, expects_data=False))
        for panel in board.panels():
            for ref, query in zip(REF_IDS, panel.queries, strict=False):
                if isinstance(query, Query):
                    expr = substitute(query.expr, board, window)
                    found.append(Expression(board.uid, panel.title, ref, expr, query.expects_data))
    return found


def substitute(text: str, board: Board, window: str = "1m") -> str:
    """Puts what tests use for the variables of ``board`` into a query."""
    values = {variable.name: variable.sample for variable in board.variables}
    values |= {WINDOW.lstrip("$"): window, RANGE.lstrip("$"): window}
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: values[match[1] or match[2]], text)
