"""Grafana's panels: one builder of ``grafana-foundation-sdk`` for each way to show an answer."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import (
    barchart,
    common,
    dashboard,
    prometheus,
    stat,
    table,
    tempo,
    timeseries,
)
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.tempo import SearchTableType

from connector.stages import STAGE_NAMES, UNEXPLAINED
from dashboards.expressions import REF_IDS
from dashboards.model import Panel, Query, TraceQuery, View
from dashboards.settings import SETTINGS, TRACES_UID

PROMETHEUS = DataSourceRef("prometheus", SETTINGS.prometheus_uid)
TEMPO = DataSourceRef("tempo", SETTINGS.tempo_uid)
NO_DATA = "no data"

# Neighbours on the path differ; a stage has its colour on every panel.
_PALETTE = (
    *("#8AB8FF", "#FADE2A", "#56A64B", "#F2495C", "#A352CC", "#FF9830", "#FFCB7D", "#3274D9", "#B877D9"),
    *("#73BF69", "#C4162A", "#5794F2", "#E0B400", "#37872D", "#DEB6F2", "#1F60C4", "#FF7383", "#96D98D"),
)
_COLOURS = {stage: _PALETTE[index % len(_PALETTE)] for index, stage in enumerate(STAGE_NAMES)} | {
    UNEXPLAINED: "#8E8E8E"
}


def panel_of(panel: Panel, number: int) -> Any:
    """Returns the builder of a panel; ``number`` is its id in its dashboard."""
    built: Any = _VIEWS[panel.view](panel)
    built.id(number).title(panel.title).description(panel.description).unit(panel.unit)
    built.span(panel.width).height(panel.height).no_value(NO_DATA).datasource(_source(panel))
    if panel.minimum is not None:
        built.min(panel.minimum)
    if panel.maximum is not None:
        built.max(panel.maximum)
    if panel.stages:
        for stage, colour in _COLOURS.items():
            fixed = {"mode": FieldColorModeId.FIXED, "fixedColor": colour}
            built.override_by_name(stage, [DynamicConfigValue("color", fixed)])
    for ref, query in zip(REF_IDS, panel.queries, strict=False):
        built.with_target(_metrics(query, ref) if isinstance(query, Query) else _traces(query, ref))
    return built


def _source(panel: Panel) -> DataSourceRef:
    return TEMPO if panel.view is View.TRACES else PROMETHEUS


def _metrics(query: Query, ref: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(ref).datasource(PROMETHEUS)
    target.exemplar(query.exemplars)
    if query.instant:
        target.instant()
    else:
        target.range().interval(SETTINGS.scrape_interval)
    return target.format(PromQueryFormat.TABLE) if query.columns else target


def _traces(query: TraceQuery, ref: str) -> tempo.Dataquery:
    rows = SearchTableType.SPANS if query.spans else SearchTableType.TRACES
    return (
        tempo.Dataquery()
        .query_type("traceql")
        .query(query.traceql)
        .table_type(rows)
        .limit(query.limit)
        .ref_id(ref)
        .datasource(TEMPO)
    )


def _newest() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"])


def _series(panel: Panel) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .legend(common.VizLegendOptions().show_legend(True).placement(common_models.LegendPlacement.BOTTOM))
        .tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
        .line_width(1)
    )
    if any(isinstance(query, Query) and query.exemplars for query in panel.queries):
        built.data_links([_to_traces()])
    return built


def _stack(panel: Panel) -> timeseries.Panel:
    stacking = common.StackingConfig().mode(common_models.StackingMode.NORMAL)
    return _series(panel).fill_opacity(60).stacking(stacking)


def _events(panel: Panel) -> timeseries.Panel:
    return _series(panel).draw_style(common_models.GraphDrawStyle.BARS).fill_opacity(80)


def _figures(panel: Panel) -> stat.Panel:
    return (
        stat.Panel()
        .reduce_options(_newest())
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .color_mode(common_models.BigValueColorMode.NONE)
        .text_mode(common_models.BigValueTextMode.VALUE_AND_NAME)
    )


def _bars(panel: Panel) -> barchart.Panel:
    """One bar a row, the smallest value first; values may be below zero."""
    return (
        _chart()
        .show_value(common_models.VisibilityMode.ALWAYS)
        .with_transformation(DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True}}))
        .with_transformation(DataTransformerConfig(id_val="sortBy", options={"sort": [{"field": "Value"}]}))
    )


def _stacked_bars(panel: Panel) -> barchart.Panel:
    rows = "mode\\stage"  # what Grafana calls the column of the row field
    matrix = {"columnField": "stage", "rowField": "mode", "valueField": "Value", "emptyValue": "null"}
    in_order = {name: place for place, name in enumerate((rows, *STAGE_NAMES, UNEXPLAINED))}
    return (
        _chart()
        .stacking(common_models.StackingMode.NORMAL)
        .show_value(common_models.VisibilityMode.NEVER)
        .with_transformation(DataTransformerConfig(id_val="groupingToMatrix", options=matrix))
        .with_transformation(DataTransformerConfig(id_val="organize", options={"indexByName": in_order}))
    )


def _chart() -> barchart.Panel:
    return (
        barchart.Panel()
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
        .legend(common.VizLegendOptions().show_legend(True).placement(common_models.LegendPlacement.BOTTOM))
    )


def _table(panel: Panel) -> table.Panel:
    slowest_first = common.TableSortByFieldState().display_name("Duration").desc(True)
    return table.Panel().cell_height(common_models.TableCellHeight.SM).sort_by([slowest_first])


def _to_traces() -> dashboard.DashboardLink:
    """From a point of a mode's line to the traces of that mode in the time shown."""
    mode = "var-mode=${__field.labels.mode}"
    return (
        dashboard.DashboardLink("Traces of this mode")
        .type(DashboardLinkType.LINK)
        .url(f"/d/{TRACES_UID}?{mode}&${{__url_time_range}}")
    )


_VIEWS = {
    View.LINES: _series,
    View.STACK: _stack,
    View.EVENTS: _events,
    View.FIGURES: _figures,
    View.BARS: _bars,
    View.STACKED_BARS: _stacked_bars,
    View.TRACES: _table,
}
