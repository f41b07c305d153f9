"""The command as a user runs it, against a Grafana that behaves as documented, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from connector import names
from stack.__main__ import main
from stack.grafana.fake import FakeGrafana, serving
from stack.grafana.settings import PREFIX

PROMETHEUS, TEMPO = names.GRAFANA_PROMETHEUS_UID, names.GRAFANA_TEMPO_UID


def dashboard(uid: str, **more: object) -> dict[str, object]:
    """A dashboard that asks both data sources: in a panel, a query, a variable and a link."""
    panel = {
        "id": 1,
        "type": "timeseries",
        "title": "Which mode is faster?",
        "datasource": {"type": "prometheus", "uid": PROMETHEUS},
        "targets": [{"refId": "A", "expr": "up", "datasource": {"type": "prometheus", "uid": PROMETHEUS}}],
        "links": [{"url": f'/explore?left={{"datasource":"{TEMPO}","queries":[]}}'}],
    }
    variable = {"name": "service", "type": "query", "datasource": {"type": "tempo", "uid": TEMPO}}
    grafana = {"datasource": {"type": "grafana", "uid": "-- Grafana --"}, "name": "annotations"}
    return {
        "uid": uid,
        "title": uid.replace("-", " "),
        "schemaVersion": 42,
        "id": None,
        "panels": [panel],
        "templating": {"list": [variable]},
        "annotations": {"list": [grafana]},
        **more,
    }


@dataclass(frozen=True)
class Ran:
    status: int
    out: list[str]
    err: list[str]


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(PREFIX + name, raising=False)


@pytest.fixture(scope="session")
def served() -> Iterator[tuple[FakeGrafana, str]]:
    fake = FakeGrafana()
    with serving(fake) as url:
        yield fake, url


@pytest.fixture
def url(served: tuple[FakeGrafana, str]) -> str:
    return served[1]


@pytest.fixture
def grafana(served: tuple[FakeGrafana, str]) -> FakeGrafana:
    """A Grafana as somebody has it before kvpath comes: both data sources, nothing else."""
    fake = served[0]
    vars(fake).update(vars(FakeGrafana(data_sources={PROMETHEUS: "prometheus", TEMPO: "tempo"})))
    return fake


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    folder = tmp_path / "generated"
    folder.mkdir()
    for uid in ("kvpath-push-pull", "kvpath-transfer"):
        (folder / f"{uid}.json").write_text(json.dumps(dashboard(uid)))
    return folder


@pytest.fixture
def run(
    grafana: FakeGrafana,
    url: str,
    generated: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Ran]:
    """Runs ``kvpath grafana ...`` with the right settings, and watches that no token is ever shown."""

    def command(action: str, *arguments: str, token: str | None = None, where: str = url) -> Ran:
        token = grafana.token if token is None else token
        monkeypatch.setenv(PREFIX + "URL", where)
        monkeypatch.setenv(PREFIX + "TOKEN", token)
        given = () if action == "annotate" else ("--dashboards", str(generated))
        status = main(["grafana", action, *arguments, *given])
        shown = capsys.readouterr()
        assert not token or token not in shown.out + shown.err
        return Ran(status, shown.out.splitlines(), shown.err.splitlines())

    return command
