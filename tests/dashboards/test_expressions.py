from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import dashboards
from connector import names
from dashboards.boards import BOARDS
from dashboards.catalogue import known_series
from dashboards.expressions import substitute
from dashboards.metric import counter, histogram
from dashboards.model import Board, Panel, Query
from tests.dashboards.promql import UnknownError, labels_of

KNOWN = known_series()


def queries() -> Iterator[tuple[Board, Panel, Query]]:
    for board in BOARDS:
        for panel in board.panels():
            for query in panel.queries:
                if isinstance(query, Query):
                    yield board, panel, query


def test_every_expression_asks_only_for_series_and_labels_that_are_exposed() -> None:
    asked = dashboards.expressions()
    assert len(asked) > 100
    for each in asked:
        labels_of(each.expr, KNOWN)


def test_every_legend_names_labels_of_its_answer() -> None:
    for board, panel, query in queries():
        answer = labels_of(substitute(query.expr, board), KNOWN)
        missing = set(re.findall(r"\{\{(\w+)\}\}", query.legend)) - answer
        assert not missing, f"{panel.title}: {missing} in {query.legend!r}"
        if not query.columns and len(panel.queries) == 1:
            assert answer <= set(re.findall(r"\{\{(\w+)\}\}", query.legend)), f"{panel.title}: series look alike"


def test_only_variables_of_the_dashboard_are_named_and_each_of_them_is() -> None:
    for board in BOARDS:
        text = " ".join(
            q.expr if isinstance(q, Query) else q.traceql for panel in board.panels() for q in panel.queries
        )
        used = set(re.findall(r"\$(\w+)", text)) - {"__rate_interval", "__range"}
        assert used == {variable.name for variable in board.variables}, board.uid


def test_no_variable_of_grafana_is_left() -> None:
    assert all("$" not in each.expr for each in dashboards.expressions())


def test_a_load_in_mode_reuse_is_expected_to_show_in_the_row_of_reuse() -> None:
    def expected(*modes: str) -> set[str]:
        return {each.expr for each in dashboards.expressions(modes=modes) if each.expects_data}

    more = expected(names.MODE_PUSH, names.MODE_REUSE) - expected(names.MODE_PUSH)
    assert any("kvpath_reuse_tokens_total" in expr for expr in more)


def test_nothing_is_divided_by_what_may_be_zero() -> None:
    for each in dashboards.expressions():
        for divisor in re.findall(r" / (?:on \([\w, ]*\) )?(?:group_left \(\) )?(\(?)", each.expr):
            assert divisor == "(", each.expr
        assert each.expr.count(" / ") == each.expr.count(" > 0)"), each.expr


@pytest.mark.parametrize(
    "old", sorted({series.removesuffix("_total") for series in KNOWN if series in str(dashboards.expressions())})
)
def test_a_metric_that_is_renamed_is_missed(old: str) -> None:
    """The mutant: the same expressions against a world in which one metric has another name."""
    renamed = {re.sub(f"^{old}(_total)?$", "kvpath_renamed", name): labels for name, labels in KNOWN.items()}
    asking = [each for each in dashboards.expressions() if re.search(rf"\b{old}(_total)?\b", each.expr)]
    assert asking
    for each in asking:
        with pytest.raises(UnknownError, match=old):
            labels_of(each.expr, renamed)


def test_a_label_that_is_renamed_is_missed() -> None:
    renamed = {name: frozenset("path" if label == "mode" else label for label in KNOWN[name]) for name in KNOWN}
    expr = next(each.expr for each in dashboards.expressions() if "by (mode)" in each.expr)
    with pytest.raises(UnknownError, match="mode"):
        labels_of(expr, renamed)


def test_a_series_of_another_kind_cannot_be_asked_for() -> None:
    assert counter("x").total == "x_total"
    assert set(histogram("x").series()) == {"x_bucket", "x_sum", "x_count"}
    with pytest.raises(TypeError, match="x is a counter"):
        counter("x").bucket  # noqa: B018
