"""A real Prometheus scrapes all parts under load; dashboards and alerts then ask it what they ask."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from conftest import LiveStack, eventually, say
from scraping import Prometheus, configuration, features

import dashboards
from connector import names
from connector.bootstrap import start_telemetry
from dashboards import collector_metrics
from dashboards.boards import BOARDS
from dashboards.expressions import Expression, substitute
from dashboards.model import Query
from stack.analysis.source import TraceSource
from stack.demo.client import stream_completion
from stack.demo.prompts import demo_prompts
from stack.engines.processes import Deployment, Part
from stack.engines.readiness import Awaited, wait_until_healthy
from stack.experiment.step import step_engine
from stack.router.metrics import REQUESTS
from tests.stack.collector.deployed import on_loopback

PROMETHEUS_PORT, EXPORTER_PORT = 19090, 19400
COLLECTOR_PORTS = COLLECTOR_HTTP_PORT, _, COLLECTOR_METRICS_PORT = 14418, 14417, 18888
MODES = (names.MODE_PUSH, names.MODE_PULL, names.MODE_REUSE)
WAVES = 4  # of a request in every mode; a counter that begins with the first one grows with the others
WINDOW = "1m"  # longer than the load
EXPRESSIONS = dashboards.expressions(WINDOW, MODES)
# Exist from a first failure on, not even declared before; tests/stack/collector provokes one.
FROM_A_FAILURE_ON = {collector_metrics.NOT_SENT.total}


@dataclass
class Load:
    """Requests in all modes at once, wave by wave; in reuse each is the next turn of one conversation."""

    stack: LiveStack
    trace_ids: set[str] = field(default_factory=set)
    _conversation: str = field(default_factory=secrets.token_hex)
    _history: str = ""

    def wave(self, prompt: str) -> None:
        self._history += prompt
        asked = dict.fromkeys((*MODES, names.MODE_PLAIN), prompt) | {names.MODE_REUSE: self._history}
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = dict(zip(asked, pool.map(self._ask, asked, asked.values()), strict=True))
        self._history += answers[names.MODE_REUSE].text
        self.trace_ids |= {answer.trace_id for answer in answers.values()}

    def _ask(self, mode: str, prompt: str):
        headers = {names.HEADER_MODE: mode, names.HEADER_CONVERSATION: self._conversation}
        settings = self.stack.settings
        return stream_completion(settings.router_url, settings.model_name, prompt, headers)

    def step_engines(self) -> None:
        """An engine hands its samples on with the next step, so the last ones need one more."""
        for engine in (self.stack.prefill, self.stack.decode):
            step_engine(engine.url, self.stack.settings.model_name)


@dataclass
class Observed:
    """What looks at the running stack, after a load."""

    stack: LiveStack
    prometheus: Prometheus
    trace_ids: frozenset[str]  # of the load


def exporter_part(stack: LiveStack, folder: Path) -> Part:
    argv = (sys.executable, "-m", "stack", "export", "--url", stack.settings.store_url, "--port", str(EXPORTER_PORT))
    return Part(
        "exporter",
        (*argv, "--state", str(folder / "exporter.db")),
        stack.settings.run_dir / "logs" / "exporter.log",
        {"KVPATH_EXPORTER_POLL_S": "0.5"},
    )


def collector_part(stack: LiveStack, program: Path, folder: Path) -> Part:
    config = folder / "collector.yaml"
    config.write_text(on_loopback(*COLLECTOR_PORTS))
    return Part(
        "Collector",
        (str(program), "--config", str(config)),
        stack.settings.run_dir / "logs" / "collector.log",
        {"KVPATH_TEMPO_ENDPOINT": stack.settings.store_url},
    )


def prometheus_part(stack: LiveStack, program: Path, folder: Path) -> Part:
    address = f"127.0.0.1:{PROMETHEUS_PORT}"
    engines = {spec.role: spec.url for spec in (stack.prefill, stack.decode)}
    targets = {
        "router": stack.settings.router_url,
        "prefill": engines["prefill"],
        "decode": engines["decode"],
        "collector": f"http://127.0.0.1:{COLLECTOR_METRICS_PORT}",
        "exporter": f"http://127.0.0.1:{EXPORTER_PORT}",
        "prometheus": f"http://{address}",
    }
    config = folder / "prometheus.yml"
    config.write_text(configuration({job: url.removeprefix("http://") for job, url in targets.items()}))
    argv = (str(program), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}")
    return Part(
        "Prometheus",
        (*argv, f"--web.listen-address={address}", *features()),
        stack.settings.run_dir / "logs" / "prometheus.log",
    )


@pytest.fixture(scope="module")
def observed(stack: LiveStack, tool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("metrics")
    prompts = demo_prompts(Path(stack.prefill.model), WAVES)
    url = f"http://127.0.0.1:{PROMETHEUS_PORT}"
    with Deployment() as deployment:
        exporter, collector, server = deployment.start(
            exporter_part(stack, folder),
            collector_part(stack, tool("otelcol"), folder),
            prometheus_part(stack, tool("prometheus"), folder),
        )
        awaited = [
            Awaited(exporter, f"http://127.0.0.1:{EXPORTER_PORT}/health"),
            Awaited(collector, f"http://127.0.0.1:{COLLECTOR_METRICS_PORT}/metrics"),
            Awaited(server, f"{url}/-/ready"),
        ]
        wait_until_healthy(deployment, awaited, 30.0, say)
        with httpx.Client(base_url=url, timeout=10.0, trust_env=False) as client:
            prometheus = Prometheus(client)
            load = Load(stack)
            for prompt in prompts:
                load.wave(prompt.text)
                send_a_span(f"http://127.0.0.1:{COLLECTOR_HTTP_PORT}")
                load.step_engines()
                wait_for_scrapes(prometheus)
            eventually(lambda: min(counted_traces(prometheus, mode) for mode in MODES) >= WAVES, 20)
            yield Observed(stack, prometheus, frozenset(load.trace_ids))


def send_a_span(otlp_url: str) -> None:
    """Gives the Collector something to do; the running stack's own spans go past it."""
    telemetry = start_telemetry("test-metrics", otlp_url)
    telemetry.tracer.start_span("one more").end()
    assert telemetry.shutdown().lost == 0


def counted_traces(prometheus: Prometheus, mode: str) -> float:
    return prometheus.value(f'{names.METRIC_EXPORTER_TRACES}_total{{mode="{mode}", outcome="complete"}}')


def wait_for_scrapes(prometheus: Prometheus) -> None:
    """Waits until all targets have been scraped after now."""
    now = prometheus.value("time()")
    eventually(lambda: prometheus.value("min(timestamp(up))") > now, 10)


def test_every_target_is_up(observed: Observed) -> None:
    up = observed.prometheus.vector("up")
    assert {labels["job"]: value for labels, value in up} == dict.fromkeys(
        ("router", "prefill", "decode", "collector", "exporter", "prometheus"), 1.0
    )


def test_prometheus_counted_what_the_router_served(observed: Observed) -> None:
    page = httpx.get(f"{observed.stack.settings.router_url}/metrics", trust_env=False).text
    lines = [line for line in page.splitlines() if line.startswith(f"{REQUESTS}_total{{")]
    assert len(lines) >= len(MODES)
    assert observed.prometheus.value(f"{REQUESTS}_total") == sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def unknown_series(prometheus: Prometheus, expr: str) -> set[str]:
    asked = prometheus.selected(expr) - FROM_A_FAILURE_ON
    return {series for series in asked if not prometheus.is_known(series)}


def test_no_expression_fails_or_asks_for_a_series_that_nothing_exposes(observed: Observed) -> None:
    prometheus = observed.prometheus
    unknown = {}
    for each in EXPRESSIONS:
        prometheus.vector(each.expr)
        if missing := unknown_series(prometheus, each.expr):
            unknown[f"{each.dashboard}: {each.panel}"] = missing
    assert len(EXPRESSIONS) > 100
    assert unknown == {}


def test_a_renamed_metric_is_found_out(observed: Observed) -> None:
    assert unknown_series(observed.prometheus, f"sum(rate({REQUESTS}_renamed_total[1m]))") == {
        f"{REQUESTS}_renamed_total"
    }


def is_empty(observed: Observed, each: Expression) -> bool:
    return not any(value == value for _, value in observed.prometheus.vector(each.expr))  # NaN says nothing


def test_every_panel_that_should_have_data_has_data(observed: Observed) -> None:
    empty = [each for each in EXPRESSIONS if each.expects_data and is_empty(observed, each)]
    assert not empty, "\n".join(f"{each.dashboard}: {each.panel} {each.expr}" for each in empty)


def test_every_rule_was_evaluated_without_an_error(observed: Observed) -> None:
    prometheus = observed.prometheus
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert rules, "no alert rules were loaded"
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    recorded = {rule["name"] for rule in rules if rule["type"] == "recording"}
    for rule in rules:
        assert unknown_series(prometheus, rule["query"]) <= recorded, rule["name"]


def test_exemplars_lead_to_traces_that_the_store_has(observed: Observed) -> None:
    asked = {
        substitute(query.expr, board, WINDOW): panel.title
        for board in BOARDS
        for panel in board.panels()
        for query in panel.queries
        if isinstance(query, Query) and query.exemplars
    }
    assert asked
    found: set[str] = set()
    for expr, title in asked.items():
        exemplars = observed.prometheus.exemplars(expr)
        assert exemplars, f"{title}: no exemplar for {expr}"
        found |= {labels["trace_id"] for _, labels in exemplars}
    assert observed.trace_ids & found
    with TraceSource(observed.stack.settings.store_url) as store:
        assert [trace_id for trace_id in found if store.fetch(trace_id) is None] == []


def test_every_mode_has_exemplars_of_its_critical_path(observed: Observed) -> None:
    exemplars = observed.prometheus.exemplars(f"{names.METRIC_EXPORTER_CRITICAL_PATH}_bucket")
    assert {series["mode"] for series, _ in exemplars} >= set(MODES)
