"""A whole dashboard as Grafana's JSON: variables, annotations, links and rows around the panels."""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.builders import dashboard, prometheus
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from connector import names
from dashboards.model import Board, Row, Variable
from dashboards.panels import PROMETHEUS, panel_of
from dashboards.queries.push_pull import SPLIT_CHANGES
from dashboards.settings import SETTINGS

_OF_INTERVALS = ("auto", "auto_count", "auto_min")  # the SDK writes them into variables of every type
_GRAFANA = DataSourceRef("grafana", "-- Grafana --")


def to_json(board: Board) -> str:
    """Returns what Grafana imports; the same board gives the same text."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(list(SETTINGS.tags))
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time(SETTINGS.from_time, "now")
        .refresh(SETTINGS.refresh)
        .link(_others())
    )
    for variable in board.variables:
        built.with_variable(_variable(variable))
    for annotation in _annotations():
        built.annotation(annotation)
    numbers = iter(range(1, 1000))
    for row in board.rows:
        _add_row(built, row, numbers)
    plain = json.loads(json.dumps(built.build(), cls=JSONEncoder))
    for variable in plain["templating"]["list"]:
        for key in _OF_INTERVALS:
            variable.pop(key, None)
    return json.dumps(plain, indent=1, sort_keys=True) + "\n"


def _add_row(built: dashboard.Dashboard, row: Row, numbers: Any) -> None:
    """Grafana keeps the panels of a collapsed row inside it, and those of an open one behind it."""
    head = dashboard.Row(row.title).id(next(numbers)).collapsed(row.collapsed)
    panels = [panel_of(panel, next(numbers)) for panel in row.panels]
    if row.collapsed:
        for panel in panels:
            head.with_panel(panel)
    built.with_row(head)
    if not row.collapsed:
        for panel in panels:
            built.with_panel(panel)


def _others() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("kvpath")
        .type(DashboardLinkType.DASHBOARDS)
        .tags(list(SETTINGS.tags))
        .include_vars(True)
        .keep_time(True)
    )


def _variable(variable: Variable) -> Any:
    choice: Any
    if variable.values:
        choice = dashboard.CustomVariable(variable.name).values(",".join(variable.values))
    else:
        series, label = variable.label_of
        choice = (
            dashboard.QueryVariable(variable.name)
            .query(f"label_values({series}, {label})")
            .datasource(PROMETHEUS)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
        )
    choice.label(variable.label)
    if variable.everything:
        everything = VariableOption(selected=True, text=["All"], value=["$__all"])
        return choice.multi(True).include_all(True).all_value(variable.everything).current(everything)
    first = variable.values[0]
    return choice.current(VariableOption(selected=True, text=first, value=first))


def _annotations() -> list[dashboard.AnnotationQuery]:
    def tagged(title: str, colour: str, tags: tuple[str, ...]) -> dashboard.AnnotationQuery:
        target: Any = dashboard.AnnotationTarget().type("tags").tags(list(tags)).match_any(False).limit(100)
        return dashboard.AnnotationQuery().name(title).datasource(_GRAFANA).icon_color(colour).target(target)

    measured = (
        dashboard.AnnotationQuery()
        .name("Weights as the router says")
        .datasource(PROMETHEUS)
        .icon_color("purple")
        .target(prometheus.Dataquery().expr(SPLIT_CHANGES).ref_id("weights").interval("1m"))
        .title_format("The split's weight of {{mode}} changed")
    )
    return [
        tagged("Changes of the split", "blue", names.ANNOTATION_SPLIT),
        tagged("Experiment", "orange", names.ANNOTATION_EXPERIMENT),
        measured,
    ]
