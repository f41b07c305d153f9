from __future__ import annotations

import json

import pytest

from connector import names
from stack.grafana.client import DataSource
from stack.grafana.dashboards import data_sources, mapped, read_dashboards, same_content, stamp
from stack.grafana.errors import SettingsError


def test_content_is_the_same_whatever_grafana_counts_and_in_any_order():
    ours = {"uid": "a", "title": "A", "id": None, "panels": [{"x": 1, "y": 2}]}
    stored = {"title": "A", "panels": [{"y": 2, "x": 1}], "uid": "a", "id": 12, "version": 4}
    assert same_content(ours, stored)
    assert stamp(ours) == stamp(stored)
    for change in ({"title": "B"}, {"panels": []}, {"panels": [{"x": 1, "y": 2, "z": 3}]}, {"extra": 1}):
        assert not same_content(ours, stored | change)
        assert stamp(ours) != stamp(stored | change)


def test_a_uid_inside_a_longer_one_is_left_alone():
    model = {"datasource": "kvpath-tempo", "text": "kvpath-tempo-2 my-kvpath-tempo kvpath-tempo. kvpath-traces"}
    other = mapped(model, {"kvpath-tempo": DataSource("T", "tempo")})
    assert other == {"datasource": "T", "text": "kvpath-tempo-2 my-kvpath-tempo T. kvpath-traces"}
    assert mapped(model, {}) == model


def test_data_sources_are_found_wherever_they_stand():
    model = {
        "panels": [
            {"datasource": {"uid": "a"}, "panels": [{"targets": [{"datasource": "b"}]}]},
            {"datasource": {"uid": "${source}"}, "fieldConfig": {"links": [{"internal": {"datasourceUid": "c"}}]}},
            {"datasource": {"type": "datasource", "uid": "-- Mixed --"}},
            {"datasource": None},
        ],
        "annotations": {"list": [{"datasource": {"uid": "-- Grafana --"}}, {"datasource": {"uid": "a"}}]},
    }
    assert data_sources(model) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there are no dashboards"),
        ("{", "cannot read the dashboard"),
        ("[]", "is no dashboard"),
        ('{"uid": "a"}', "is no dashboard"),
    ],
)
def test_a_folder_without_usable_dashboards_is_refused(tmp_path, content, said):
    if content is not None:
        (tmp_path / "one.json").write_text(content)
    with pytest.raises(SettingsError, match=said):
        read_dashboards(tmp_path)


def test_a_uid_that_stands_twice_is_refused(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"uid": "same", "title": name}))
    with pytest.raises(SettingsError, match=r"two dashboards in .* have the uid same"):
        read_dashboards(tmp_path)


def test_the_dashboards_brought_along_ask_our_two_data_sources_only():
    models = read_dashboards()
    asked = {uid for model in models for uid in data_sources(model)}
    assert asked == {names.GRAFANA_PROMETHEUS_UID, names.GRAFANA_TEMPO_UID}
    theirs = {names.GRAFANA_PROMETHEUS_UID: DataSource("P", "p"), names.GRAFANA_TEMPO_UID: DataSource("T", "t")}
    for model in models:
        changed = json.dumps(mapped(model, theirs))
        assert not any(uid in changed for uid in theirs)
