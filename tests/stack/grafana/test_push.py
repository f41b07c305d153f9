from __future__ import annotations

import json

import pytest

from connector import names
from stack.grafana.dashboards import data_sources

PROMETHEUS, TEMPO = names.GRAFANA_PROMETHEUS_UID, names.GRAFANA_TEMPO_UID


@pytest.mark.parametrize("completes", [False, True])
def test_pushing_twice_changes_nothing(run, grafana, completes):
    grafana.completes = completes
    first = run("push")
    assert first.status == 0
    assert first.out == [
        "folder kvpath: created",
        "kvpath-push-pull: created, version 1",
        "kvpath-transfer: created, version 1",
    ]
    writes = grafana.writes
    second = run("push")
    assert second.status == 0
    assert second.out == ["kvpath-push-pull: unchanged, version 1", "kvpath-transfer: unchanged, version 1"]
    assert grafana.writes == writes == 3
    assert {version.folder_uid for versions in grafana.dashboards.values() for version in versions} == {"kvpath"}


def test_a_new_content_is_one_new_version(run, grafana, generated):
    run("push")
    file = generated / "kvpath-transfer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"title": "Transfer, renamed"}))
    assert run("push").out[-1] == "kvpath-transfer: updated, version 1 is now 2"
    assert grafana.dashboards["kvpath-transfer"][-1].model["title"] == "Transfer, renamed"
    assert len(grafana.dashboards["kvpath-push-pull"]) == 1


@pytest.mark.parametrize("completes", [False, True])
def test_what_somebody_changed_in_the_browser_is_replaced_and_stays_in_the_history(run, grafana, completes):
    grafana.completes = completes
    run("push")
    grafana.edited("kvpath-transfer", title="mine")
    assert run("push").out[-1] == "kvpath-transfer: updated, version 2 is now 3"
    assert [version.model["title"] for version in grafana.dashboards["kvpath-transfer"]] == [
        "kvpath transfer",
        "mine",
        "kvpath transfer",
    ]


def test_a_dashboard_that_was_moved_comes_back_into_the_folder(run, grafana):
    run("push")
    grafana.dashboards["kvpath-transfer"][-1].folder_uid = ""
    assert run("push").out[-1] == "kvpath-transfer: updated, version 1 is now 2"
    assert grafana.dashboards["kvpath-transfer"][-1].folder_uid == "kvpath"


def test_a_dry_run_changes_nothing_and_says_what_would(run, grafana):
    dry = run("push", "--dry-run")
    assert dry.status == 0
    assert dry.out == [
        "folder kvpath: would be created",
        "kvpath-push-pull: would be created",
        "kvpath-transfer: would be created",
    ]
    assert grafana.writes == 0
    run("push")
    grafana.edited("kvpath-transfer", title="mine")
    writes = grafana.writes
    assert run("push", "--dry-run").out == [
        "kvpath-push-pull: unchanged, version 1",
        "kvpath-transfer: version 2 would be replaced",
    ]
    assert grafana.writes == writes


def test_other_data_sources_take_the_place_of_ours_everywhere(run, grafana):
    grafana.data_sources = {"amp-1": "grafana-amazonprometheus-datasource", "traces_x": "tempo"}
    mine = ("--data-source-prometheus", "amp-1", "--data-source-tempo", "traces_x")
    assert run("push", *mine).status == 0
    model = grafana.dashboards["kvpath-transfer"][-1].model
    assert PROMETHEUS not in json.dumps(model)
    assert TEMPO not in json.dumps(model)
    assert data_sources(model) == ["amp-1", "traces_x"]
    assert model["panels"][0]["datasource"] == {"type": "grafana-amazonprometheus-datasource", "uid": "amp-1"}
    assert model["panels"][0]["links"][0]["url"] == '/explore?left={"datasource":"traces_x","queries":[]}'
    writes = grafana.writes
    assert run("push", *mine).out[-1] == "kvpath-transfer: unchanged, version 1"
    assert grafana.writes == writes


def test_a_managed_grafana_lets_an_editor_push(run, grafana):
    """No health endpoint, no right to look at data sources, dashboards completed on saving."""
    grafana.managed = grafana.completes = True
    grafana.denied = ["GET /api/datasources", "POST /api/admin"]
    assert run("push").status == 0
    assert run("push").out[-1] == "kvpath-transfer: unchanged, version 1"


def test_a_wrong_token_is_one_line(run, grafana, url):
    refused = run("push", token="glsa_wrong")
    assert refused.status == 1
    assert refused.out == []
    assert refused.err == [
        f"kvpath grafana: Grafana at {url} does not accept the token (Invalid API key): set KVPATH_GRAFANA_TOKEN to "
        "one of a service account of this Grafana"
    ]
    assert run("push", token="").err == [
        f"kvpath grafana: Grafana at {url} wants a token: set KVPATH_GRAFANA_TOKEN to one of a service account"
    ]
    assert grafana.writes == 0


def test_a_missing_folder_is_one_line(run, grafana, url):
    missing = run("push", "--folder", "team-x")
    assert missing.status == 1
    assert missing.out == []
    assert missing.err == [f"kvpath grafana: folder team-x does not exist in {url}: create it, or leave --folder out"]
    grafana.denied = ["POST /api/folders"]
    denied = run("push")
    assert denied.status == 1
    assert denied.err == [
        "kvpath grafana: folder kvpath is missing and the token may not create folder kvpath: You'll need additional "
        "permissions. Permissions needed: POST /api/folders; name one that exists with --folder"
    ]
    assert grafana.writes == 0
    grafana.folders["team-x"] = "Team X"
    assert run("push", "--folder", "team-x").status == 0
    assert {versions[-1].folder_uid for versions in grafana.dashboards.values()} == {"team-x"}


def test_a_read_only_dashboard_is_one_line_and_the_others_are_pushed(run, grafana):
    run("push")
    grafana.edited("kvpath-push-pull", title="as its file says")
    grafana.provisioned.add("kvpath-push-pull")
    grafana.edited("kvpath-transfer", title="mine")
    pushed = run("push")
    assert pushed.status == 1
    assert pushed.out == [
        "kvpath-push-pull: not pushed: read-only: this Grafana takes it from its own files (provisioning), so only "
        "these can change it",
        "kvpath-transfer: updated, version 2 is now 3",
    ]
    assert pushed.err == []


def test_a_provisioned_dashboard_with_our_content_is_unchanged(run, grafana):
    run("push")
    grafana.provisioned = {"kvpath-push-pull", "kvpath-transfer"}
    assert run("push").status == 0


def test_a_dashboard_that_somebody_saves_meanwhile_is_not_overwritten(run, grafana, monkeypatch):
    from stack.grafana.client import Grafana

    run("push")
    grafana.edited("kvpath-transfer", title="first edit")
    save = Grafana.save

    def late(self, *arguments):
        grafana.edited("kvpath-transfer", title="second edit")
        return save(self, *arguments)

    monkeypatch.setattr(Grafana, "save", late)
    pushed = run("push")
    assert pushed.status == 1
    assert pushed.out[-1] == (
        "kvpath-transfer: not pushed: cannot save dashboard kvpath-transfer: Grafana answers 412, The dashboard has "
        "been changed by someone else; push again to replace what it has become"
    )
    assert grafana.dashboards["kvpath-transfer"][-1].model["title"] == "second edit"


def test_a_missing_data_source_is_one_line_and_nothing_is_pushed(run, grafana, url):
    del grafana.data_sources[TEMPO]
    missing = run("push")
    assert missing.status == 1
    assert missing.err == [
        f"kvpath grafana: data source {TEMPO} does not exist in {url}: create it with this uid, or give the uid of "
        "yours with --data-source-tempo"
    ]
    grafana.data_sources[TEMPO] = "loki"
    assert run("push").err == [f"kvpath grafana: data source {TEMPO} is of type loki, and must be tempo"]
    assert grafana.writes == 0
