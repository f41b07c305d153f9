from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from grafana_foundation_sdk.models import units

from connector import names
from connector.stages import REUSE_STAGES, STAGE_NAMES, UNEXPLAINED
from dashboards.boards import BOARDS
from dashboards.grafana import to_json
from dashboards.settings import SETTINGS

MODELS = {board.uid: json.loads(to_json(board)) for board in BOARDS}
SCHEMA = json.loads((Path(__file__).parent / "grafana-dashboard.schema.json").read_text())
UNITS = {value for name, value in vars(units).items() if isinstance(value, str) and not name.startswith("_")}
BUILT_IN = "-- Grafana --"
# Grafana's types give every annotation the query of Grafana's own tags ("TODO.. this should just be a normal query
# target"), so what Prometheus' annotation needs beside it is not in the schema.
ANNOTATION_OF_PROMETHEUS = {"target", "titleFormat"}

models = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def panels(model: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in model["panels"]:
        yield panel
        yield from panel.get("panels") or ()


def asking(model: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (panel for panel in panels(model) if panel["type"] != "row")


def validate(model: dict[str, Any]) -> None:
    checked = copy.deepcopy(model)
    for annotation in checked["annotations"]["list"]:
        if annotation["datasource"]["type"] == "prometheus":
            for key in ANNOTATION_OF_PROMETHEUS:
                del annotation[key]
    jsonschema.validate(checked, SCHEMA)


@models
def test_it_is_what_grafanas_own_types_say_a_dashboard_is(model: dict[str, Any]) -> None:
    validate(model)


@pytest.mark.parametrize(
    "breaks",
    [
        lambda model: model.update(refresh=30),
        lambda model: model["panels"][1].pop("type"),
        lambda model: model["panels"][1]["gridPos"].update(w="wide"),
        lambda model: model["templating"]["list"][0].update(multy=True),
        lambda model: model["panels"][1]["fieldConfig"]["defaults"].update(unit=3),
    ],
)
def test_the_schema_rejects_what_is_no_dashboard(breaks: Any) -> None:
    model = copy.deepcopy(MODELS["kvpath-transfer"])
    breaks(model)
    with pytest.raises(jsonschema.ValidationError):
        validate(model)


def test_uids_and_titles_are_unique_and_those_that_others_link_to() -> None:
    assert list(MODELS) == [
        *("kvpath-push-pull", "kvpath-transfer", "kvpath-engines", "kvpath-traces", "kvpath-telemetry"),
    ]
    assert len({model["title"] for model in MODELS.values()}) == len(MODELS)


@models
def test_every_panel_asks_a_question_says_what_to_do_and_has_a_unit(model: dict[str, Any]) -> None:
    titles = [panel["title"] for panel in asking(model)]
    assert len(set(titles)) == len(titles) > 5
    for panel in asking(model):
        assert panel["title"].endswith("?"), panel["title"]
        assert len(panel["description"]) > 40, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["targets"], panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@models
def test_ids_are_unique_and_panels_lie_beside_each_other(model: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in panels(model)]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in panels(model):
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells
    for y in {y for _, y in taken}:
        assert len({x for x, row in taken if row == y}) == 24, f"a hole at row {y}"


@models
def test_data_sources_are_named_by_their_fixed_uids(model: dict[str, Any]) -> None:
    def uids(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if "uid" in value and "type" in value:
                yield value["uid"]
            for inner in value.values():
                yield from uids(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from uids(inner)

    without_its_own = {key: value for key, value in model.items() if key != "uid"}
    assert set(uids(without_its_own)) <= {SETTINGS.prometheus_uid, SETTINGS.tempo_uid, BUILT_IN}
    text = json.dumps(model)
    assert "${DS_" not in text
    assert "__inputs" not in model
    assert "latest" not in text


@models
def test_changes_of_the_split_and_experiments_are_marked(model: dict[str, Any]) -> None:
    tags = [tuple(each["target"].get("tags", ())) for each in model["annotations"]["list"]]
    assert names.ANNOTATION_SPLIT in tags
    assert names.ANNOTATION_EXPERIMENT in tags
    weights = model["annotations"]["list"][2]
    assert "kvpath_router_split_weight offset" in weights["target"]["expr"]


def test_ttft_has_exemplars_and_leads_to_the_traces_of_the_mode() -> None:
    panel = next(each for each in asking(MODELS["kvpath-push-pull"]) if each["title"].startswith("When does the first"))
    assert all(target["exemplar"] for target in panel["targets"])
    assert panel["fieldConfig"]["defaults"]["links"][0]["url"].startswith("/d/kvpath-traces?var-mode=")


@pytest.mark.parametrize(
    ("uid", "mode"), [("kvpath-push-pull", "push"), ("kvpath-push-pull", "pull"), ("kvpath-engines", "reuse")]
)
def test_stages_are_stacked_in_the_order_of_the_path(uid: str, mode: str) -> None:
    title = f"What is the time to the first token made of, in {mode}?"
    panel = next(each for each in asking(MODELS[uid]) if each["title"] == title)
    shown = [target["legendFormat"] for target in panel["targets"]]
    assert shown == [name for name in (*STAGE_NAMES, UNEXPLAINED) if mode == "reuse" or name not in REUSE_STAGES]
    assert panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
