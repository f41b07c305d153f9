"""The metrics as dashboards know them, against those that the parts really expose."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

import stack.router.metrics
from connector import metrics as connector_metrics
from connector.bootstrap import SpanCounts
from dashboards import engine_metrics, exporter_metrics, router_metrics, vllm_metrics
from dashboards.generate import HERE
from dashboards.metric import Metric, counter
from stack.exporter.metrics import ExporterMetrics
from stack.router.conversations.process_memory import ProcessMemory
from stack.router.metrics import MemoryCollector, RouterMetrics, StateCollector
from stack.router.pool import EnginePool
from stack.router.settings import DECODE, EngineSettings
from stack.router.spans import TelemetryErrors


def declared(registry: CollectorRegistry) -> dict[str, tuple[str, frozenset[str]]]:
    """Returns kind and labels of every metric in a registry, by name; those of collectors of their own are left out."""
    found = {}
    for collector in list(registry._collector_to_names):
        if isinstance(collector, Counter | Gauge | Histogram):
            found[collector._name] = (collector._type, frozenset(collector._labelnames))
    return found


def as_known(metrics: Iterable[Metric]) -> dict[str, tuple[str, frozenset[str]]]:
    return {metric.name: (metric.kind, metric.labels) for metric in metrics}


def test_the_exporters_metrics_are_those_that_it_exposes() -> None:
    assert as_known(exporter_metrics.METRICS) == declared(ExporterMetrics().registry)


def test_the_engines_metrics_are_those_of_the_connector() -> None:
    registry = CollectorRegistry()

    def on(kind: type) -> object:
        def make(multiprocess_mode: str = "", **options: object) -> object:
            return kind(registry=registry, **options)

        return make

    classes = {"counter": on(Counter), "gauge": on(Gauge), "histogram": on(Histogram)}
    connector_metrics.EngineMetrics(classes, list(vllm_metrics.LABELS), {0: ["model", 0]})
    exposed = declared(registry)
    assert as_known(engine_metrics.METRICS).items() <= exposed.items()
    assert set(exposed) == {metric.name for metric in engine_metrics.METRICS}, "a metric that nobody looks at"


def test_the_routers_metrics_are_those_that_it_exposes() -> None:
    metrics = RouterMetrics(TelemetryErrors())
    engine = EngineSettings(url="http://127.0.0.1:1", role=DECODE, engine_id="d")
    pool = EnginePool([engine])
    scraped = [
        *StateCollector(pool, lambda: {"push": 1.0}, SpanCounts, TelemetryErrors()).collect(),
        *MemoryCollector(ProcessMemory(1, 1.0, lambda: 0.0)).collect(),
    ]
    at_scrape = {each.name: (each.type, frozenset(each.samples[0].labels)) for each in scraped}
    assert as_known(router_metrics.METRICS) == declared(metrics.registry) | at_scrape


def test_every_metric_that_the_router_names_is_known() -> None:
    constants = {value for value in vars(stack.router.metrics).values() if str(value).startswith("kvpath_router_")}
    assert constants == {metric.name for metric in router_metrics.METRICS}


@pytest.fixture(scope="module")
def vllm_sources() -> str:
    found = importlib.util.find_spec("vllm")  # not imported: that takes many seconds
    assert found is not None
    assert found.submodule_search_locations
    root = Path(found.submodule_search_locations[0])
    nixl = root / "distributed/kv_transfer/kv_connector/v1/nixl/stats.py"
    return "\n".join(path.read_text() for path in (root / "v1/metrics/loggers.py", nixl))


@pytest.mark.parametrize("metric", vllm_metrics.METRICS, ids=lambda metric: metric.name)
def test_vllms_metrics_are_in_the_installed_vllm(metric: Metric, vllm_sources: str) -> None:
    made = re.search(rf'_(\w+)_cls\(\s*name="{metric.name}",(.*?)labelnames=(.*?),?\n\s*\)', vllm_sources, re.DOTALL)
    assert made, f"this vLLM has no metric {metric.name}"
    assert made[1] == metric.kind
    assert set(re.findall(r'"(\w+)"', made[3])) == metric.labels - set(vllm_metrics.LABELS)


@pytest.mark.parametrize(
    "source", [router_metrics, engine_metrics, exporter_metrics], ids=lambda source: source.__name__
)
def test_renaming_a_metric_of_ours_changes_the_committed_files(source: ModuleType) -> None:
    """Names are imported, so a rename reaches the files that are compared; and nothing is exposed for nobody."""
    committed = "".join(path.read_text() for path in (*HERE.glob("generated/*.json"), *HERE.glob("alerts/*.yaml")))
    unseen = [m.name for m in source.METRICS if not re.search(rf"\b{m.name}(_total|_bucket|_sum|_count)?\b", committed)]
    assert not unseen


def test_a_metric_that_vllm_does_not_have_is_found_out(vllm_sources: str) -> None:
    with pytest.raises(AssertionError, match="no metric vllm:renamed"):
        test_vllms_metrics_are_in_the_installed_vllm(counter("vllm:renamed", vllm_metrics.LABELS), vllm_sources)
