"""A real Prometheus with the deployed configuration, its targets replaced by those of the test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "stack" / "prometheus" / "prometheus.yml"
RULES = ROOT / "dashboards" / "alerts"


def configuration(targets: Mapping[str, str], interval: str = "1s") -> str:
    """Renders the deployed configuration with one target a job; jobs without one are left out."""
    config = yaml.safe_load(CONFIG.read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert targets.keys() <= jobs.keys(), f"{CONFIG} has no job {targets.keys() - jobs.keys()}"
    for name, target in targets.items():
        for discovery in [key for key in jobs[name] if key.endswith("_configs") and "relabel" not in key]:
            del jobs[name][discovery]
        jobs[name]["static_configs"] = [{"targets": [target]}]
    config["scrape_configs"] = [jobs[name] for name in targets]
    config["global"] |= {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval}
    config["rule_files"] = [str(path) for path in sorted(RULES.glob("*.yaml"))]
    del config["alerting"]
    return yaml.safe_dump(config)


def features() -> tuple[str, ...]:
    """The features that compose.yaml switches on in Prometheus."""
    command = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["prometheus"]["command"]
    return tuple(flag for flag in command if flag.startswith("--enable-feature="))


class Prometheus:
    """Its HTTP API, for ``client``. Every answer that is an error or carries a warning fails the test."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def get(self, path: str, **params: str) -> Any:
        answer = self._client.get(f"/api/v1/{path}", params=params).json()
        assert answer["status"] == "success", f"{params}: {answer}"
        assert not answer.get("warnings"), f"{params}: {answer}"
        assert not answer.get("infos"), f"{params}: {answer}"
        return answer["data"]

    def vector(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """The answer now, labels and value each."""
        data = self.get("query", query=expr)
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        assert data["resultType"] == "vector", expr
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    def value(self, expr: str) -> float:
        """The sum of the answer now, 0 when it is empty."""
        return sum(value for _, value in self.vector(expr))

    def series(self) -> set[str]:
        """Names of all series there are."""
        return set(self.get("label/__name__/values"))

    def families(self) -> set[str]:
        """Names of all metrics that targets declare, also those without a series so far."""
        return set(self.get("metadata"))

    def exemplars(self, expr: str) -> list[tuple[dict[str, str], dict[str, str]]]:
        """Labels of the series and of the exemplar, for every exemplar of the series in an expression."""
        found = self.get("query_exemplars", query=expr, start="0", end="9999999999")
        return [(each["seriesLabels"], exemplar["labels"]) for each in found for exemplar in each["exemplars"]]

    def selected(self, expr: str) -> set[str]:
        """Names of the series that an expression asks for."""
        return set(_selected(self.get("parse_query", query=expr)))

    def is_known(self, series: str) -> bool:
        """Whether a target exposes it; a labelled metric has no series before something happens, but is declared."""
        if series in self.series():
            return True
        family = series.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum").removesuffix("_total")
        return bool({series, family} & self.families())


def _selected(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("type") in ("vectorSelector", "matrixSelector"):
            assert node["name"], f"a selector without a name: {node}"
            yield node["name"]
        for child in node.values():
            yield from _selected(child)
    elif isinstance(node, list):
        for child in node:
            yield from _selected(child)
