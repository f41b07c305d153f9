"""Every PromQL expression of the dashboards, ready for a Prometheus: no Grafana variable is left."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from connector import names
from dashboards.boards import BOARDS
from dashboards.model import Board, Query
from dashboards.queries.push_pull import SPLIT_CHANGES
from dashboards.settings import RANGE, WINDOW

REF_IDS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Expression:
    dashboard: str  # uid
    panel: str  # title
    ref: str
    expr: str
    expects_data: bool  # after a load in the modes that were asked for, the answer is not empty


def expressions(
    window: str = "1m",
    modes: Collection[str] = (names.MODE_PUSH, names.MODE_PULL),
    boards: Iterable[Board] = BOARDS,
) -> list[Expression]:
    """Returns all expressions of the dashboards, as after a load in ``modes``.

    ``window`` stands for every interval that Grafana would choose: at least two scrapes, better four.
    """
    found = []
    for board in boards:
        found.append(Expression(board.uid, "(annotation)", "A", SPLIT_CHANGES, expects_data=False))
        for panel in board.panels():
            for ref, query in zip(REF_IDS, panel.queries, strict=False):
                if isinstance(query, Query):
                    expr = substitute(query.expr, board, window)
                    expects = query.expects_data and (not query.mode or query.mode in modes)
                    found.append(Expression(board.uid, panel.title, ref, expr, expects))
    return found


def substitute(text: str, board: Board, window: str = "1m") -> str:
    """Puts what tests use for the variables of ``board`` into a query."""
    values = board.samples() | {WINDOW.lstrip("$"): window, RANGE.lstrip("$"): window}
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: values[match[1] or match[2]], text)
