from __future__ import annotations

import socket

import pytest

from connector import names
from stack.grafana.fake import VERSION

PROMETHEUS, TEMPO = names.GRAFANA_PROMETHEUS_UID, names.GRAFANA_TEMPO_UID


def test_everything_as_it_should_be_is_one_line_each(run, grafana, url):
    run("push")
    grafana.up = [1.0, 0.0, 1.0]
    writes = grafana.writes
    checked = run("check")
    assert checked.status == 0
    assert checked.out == [
        f"ok    Grafana {VERSION} answers at {url}",
        f"ok    data source {PROMETHEUS}: `up` has 3 series, 2 of them are 1",
        f"ok    data source {TEMPO}: answers a search",
        "ok    folder kvpath: kvpath",
        "ok    dashboard kvpath-push-pull: version 1, unchanged",
        "ok    dashboard kvpath-transfer: version 1, unchanged",
    ]
    assert grafana.writes == writes


def test_a_grafana_that_kvpath_never_saw(run, grafana):
    grafana.data_sources.clear()
    checked = run("check")
    assert checked.status == 1
    failures = checked.out[1:]
    assert len(failures) == 5
    assert all(line.startswith("FAIL  ") for line in failures)
    assert failures[0].startswith(f"FAIL  data source {PROMETHEUS}: data source {PROMETHEUS} does not exist in ")
    assert failures[2] == "FAIL  folder kvpath: it does not exist; `kvpath grafana push` makes it"
    assert failures[3] == "FAIL  dashboard kvpath-push-pull: it is not there; `kvpath grafana push` brings it"


@pytest.mark.parametrize("completes", [False, True])
def test_what_is_not_as_it_should_be_is_named(run, grafana, completes):
    grafana.completes = completes
    run("push")
    grafana.edited("kvpath-push-pull", title="mine")
    grafana.dashboards["kvpath-transfer"][-1].folder_uid = ""
    grafana.broken = {TEMPO}
    grafana.up = []
    checked = run("check")
    assert checked.status == 1
    assert checked.out[1:] == [
        f"FAIL  data source {PROMETHEUS}: it answers, but knows no target: `up` is empty, so nothing of kvpath is "
        "scraped",
        f"FAIL  data source {TEMPO}: cannot search {TEMPO}: Grafana answers 502, Server Error 502:",
        "ok    folder kvpath: kvpath",
        "FAIL  dashboard kvpath-push-pull: its content differs; `kvpath grafana push` puts it right",
        "FAIL  dashboard kvpath-transfer: it is in folder General and not in kvpath; `kvpath grafana push` puts it "
        "right",
    ]


def test_a_data_source_whose_server_does_not_answer(run, grafana):
    run("push")
    grafana.broken = {PROMETHEUS}
    failure = run("check").out[1]
    assert failure.startswith(f"FAIL  data source {PROMETHEUS}: ")
    assert "connection refused" in failure


def test_a_dashboard_that_asks_a_data_source_that_is_not_there(run, grafana):
    run("push")
    grafana.edited("kvpath-transfer", panels=[{"datasource": {"type": "prometheus", "uid": "gone"}}])
    assert run("check").out[-1] == ("FAIL  dashboard kvpath-transfer: it asks data source gone, which does not exist")


def test_a_provisioned_dashboard_that_differs_is_not_for_push(run, grafana):
    run("push")
    grafana.edited("kvpath-transfer", title="as its file says")
    grafana.provisioned = {"kvpath-transfer"}
    assert run("check").out[-1] == (
        "FAIL  dashboard kvpath-transfer: its content differs; change the files it comes from"
    )


def test_with_data_sources_of_the_users_own(run, grafana, url):
    grafana.data_sources = {"amp-1": "grafana-amazonprometheus-datasource", "traces_x": "tempo"}
    mine = ("--data-source-prometheus", "amp-1", "--data-source-tempo", "traces_x")
    run("push", *mine)
    assert run("check", *mine).status == 0
    assert run("check").status == 1


def test_a_managed_grafana_and_a_token_that_may_query_only(run, grafana, url):
    run("push")
    grafana.managed = True
    grafana.denied = ["GET /api/datasources/uid"]
    checked = run("check")
    assert checked.status == 0
    assert checked.out[0] == f"ok    Grafana {VERSION} answers at {url}"
    assert checked.out[1] == f"ok    data source {PROMETHEUS}: `up` has 2 series, 2 of them are 1"


def test_a_wrong_token_ends_the_check_with_one_line(run, url):
    checked = run("check", token="glsa_wrong")
    assert checked.status == 1
    assert checked.out == [f"ok    Grafana {VERSION} answers at {url}"]
    assert len(checked.err) == 1
    assert "does not accept the token (Invalid API key)" in checked.err[0]


def test_nothing_that_answers_is_one_line(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    checked = run("check", where=f"http://127.0.0.1:{port}")
    assert checked.status == 1
    assert checked.out == []
    assert checked.err == [f"kvpath grafana: no Grafana answers at http://127.0.0.1:{port}: Connection refused"]


def test_something_else_than_grafana_is_one_line(run, url):
    checked = run("check", where=f"{url}/not-here")
    assert checked.status == 1
    assert len(checked.err) == 1
