"""What a dashboard is made of, before it becomes Grafana's JSON: boards of rows of panels that ask queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from connector import names
from connector.stages import STAGE_NAMES, UNEXPLAINED
from dashboards import vllm_metrics


class View(Enum):
    """How a panel shows its answers."""

    LINES = auto()
    STACK = auto()  # areas on top of each other: only for what adds up
    EVENTS = auto()  # bars over time: counts of rare things
    FIGURES = auto()  # the newest value, large
    BARS = auto()  # one horizontal bar a series, the newest value
    STACKED_BARS = auto()  # one bar a mode, its stages beside each other
    TRACES = auto()  # a table of traces or spans


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression.

    ``expects_data``: under load the answer holds something; ``mode`` says in which mode the load must be, if in one.
    """

    expr: str
    legend: str = ""
    expects_data: bool = True
    mode: str = ""
    instant: bool = False
    exemplars: bool = False
    columns: bool = False  # a table of labels and value, for transformations


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """One TraceQL search; the rows are spans, or whole traces. Tempo answers with the newest ``limit`` that match."""

    traceql: str
    spans: bool = True
    limit: int = 50


@dataclass(frozen=True, slots=True)
class Panel:
    """``title`` asks a question; ``description`` says what a bad answer looks like and what to do then."""

    title: str
    description: str
    unit: str  # one of Grafana's unit ids
    queries: tuple[Query | TraceQuery, ...]
    view: View = View.LINES
    width: int = 8  # of 24
    height: int = 8
    minimum: float | None = 0
    maximum: float | None = None
    stages: bool = False  # series are stages: each has its colour everywhere


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice above a dashboard, which queries name as ``$name``."""

    name: str
    label: str
    values: tuple[str, ...] = ()  # what can be chosen
    label_of: tuple[str, str] = ("", "")  # or: the values of a label of a series, as (series, label)
    everything: str = ""  # what "All" stands for; empty: exactly one value is chosen
    sample: str = ""  # what tests put in; empty: what "All" stands for, or the first value


MODE = Variable("mode", "Mode", values=(*names.TRANSFER_MODES, names.MODE_PLAIN), everything=".+")
ENGINE = Variable("engine", "Engine", label_of=(vllm_metrics.RUNNING.value, "instance"), everything=".+")
STAGE = Variable("stage", "Stage", values=(*STAGE_NAMES, UNEXPLAINED), everything=".+")


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. ``name`` is its file's name in ``generated/``."""

    name: str
    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()

    def samples(self) -> dict[str, str]:
        """Returns a value for every variable, by its name."""
        return {each.name: each.sample or each.everything or each.values[0] for each in self.variables}

    def panels(self) -> Iterator[Panel]:
        for row in self.rows:
            yield from row.panels
