"""Every expression of dashboards and alerts, asked of a real Prometheus about deployments of several sizes."""

from __future__ import annotations

import math
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import dashboards
from connector import names
from dashboards.alerts import ALERTS, RECORDS
from dashboards.boards.path import stages_of
from stack.engines.processes import Deployment, Part
from stack.engines.readiness import Awaited, wait_until_healthy
from tests.dashboards.worlds import World, page

T0 = 1_790_000_400
NONE, ONE, MANY, QUIET = WORLDS = (
    World("no engine", T0, engines=0),
    World("one engine of each kind", T0 + 3600, engines=1),
    World("many engines", T0 + 7200, engines=3),
    World("no traffic", T0 + 10800, engines=2, traffic=False),
)
WINDOW = "5m"
MODES = (*names.TRANSFER_MODES, names.MODE_PLAIN)
PANELS = dashboards.expressions(WINDOW, MODES)
RULES = [(rule.name, rule.expr) for rule in (*ALERTS, *RECORDS)]
Ask = Callable[[str, World], list[float]]


@pytest.fixture(scope="module")
def ask(tool: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    folder = tmp_path_factory.mktemp("prometheus")
    samples, data = folder / "samples.txt", folder / "data"
    samples.write_text(page(WORLDS))
    command = [tool("promtool"), "tsdb", "create-blocks-from", "openmetrics", samples, data]
    subprocess.run(command, check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    (folder / "prometheus.yml").write_text("global: {}\n")
    argv = (
        str(tool("prometheus")),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    url = f"http://127.0.0.1:{port}"
    with Deployment() as deployment, httpx.Client(base_url=url, timeout=10.0, trust_env=False) as client:
        (part,) = deployment.start(Part("Prometheus", argv, folder / "log"))
        wait_until_healthy(deployment, [Awaited(part, f"{url}/-/ready")], 60, print)

        def values(expr: str, world: World) -> list[float]:
            answer = client.get("/api/v1/query", params={"query": expr, "time": world.ends_at}).json()
            assert answer["status"] == "success", f"{world.name}: {answer['error']}: {expr}"
            assert not answer.get("warnings"), f"{answer['warnings']}: {expr}"
            return [float(sample["value"][1]) for sample in answer["data"]["result"]]

        yield values


@pytest.mark.parametrize("world", [ONE, MANY], ids=lambda world: world.name)
def test_every_panel_has_figures_with_one_engine_and_with_many(ask: Ask, world: World) -> None:
    for each in PANELS:
        values = ask(each.expr, world)
        assert values or not each.expects_data, f"{each.panel}: {each.expr}"
        assert all(map(math.isfinite, values)), f"{each.panel}: {values}: {each.expr}"


@pytest.mark.parametrize("world", [NONE, QUIET], ids=lambda world: world.name)
def test_nothing_is_a_number_that_is_none_when_nothing_happens(ask: Ask, world: World) -> None:
    for each in PANELS:
        assert all(map(math.isfinite, ask(each.expr, world))), f"{each.panel}: {each.expr}"


def test_the_router_alone_is_shown_when_there_is_no_engine(ask: Ask) -> None:
    shown = {each.panel for each in PANELS if ask(each.expr, NONE)}
    assert "When does the first token reach the client?" in shown
    assert "How many requests run?" not in shown


@pytest.mark.parametrize(("name", "expr"), RULES, ids=[name for name, _ in RULES])
def test_a_rule_can_be_evaluated_whatever_there_is(ask: Ask, name: str, expr: str) -> None:
    for world in WORLDS:
        ask(expr, world)


def test_shares_of_a_whole_add_up_to_one(ask: Ask) -> None:
    for panel in ("What share of the traffic does each mode serve?", "How is the traffic meant to be split?"):
        (each,) = (each for each in PANELS if each.panel == panel)
        assert sum(ask(each.expr, MANY)) == pytest.approx(1), panel


def test_the_stages_add_up_to_the_mean_of_their_requests_with_many_exporters_too(ask: Ask) -> None:
    for mode in names.TRANSFER_MODES:
        shown = [each for each in PANELS if each.panel == f"What is the time to the first token made of, in {mode}?"]
        stages = "|".join(stages_of(mode))  # this world has all stages in every mode
        whole = f'sum (rate(kvpath_critical_path_seconds_sum{{mode="{mode}", stage=~"{stages}"}}[{WINDOW}]))'
        requests = f'sum (rate(kvpath_ttft_seconds_count{{mode="{mode}"}}[{WINDOW}]))'
        (mean,) = ask(f"{whole} / {requests}", MANY)
        assert sum(value for each in shown for value in ask(each.expr, MANY)) == pytest.approx(mean)


def test_a_division_that_is_not_guarded_is_found_out(ask: Ask) -> None:
    unguarded = "sum (rate(kvpath_router_requests_total[5m])) / sum (rate(kvpath_router_errors_total[5m]))"
    assert not all(map(math.isfinite, ask(unguarded, QUIET)))
