"""The configuration of what stands behind the engines: Collector, Tempo, Prometheus, Alertmanager, Grafana."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from connector import names
from dashboards.catalogue import known_series
from dashboards.settings import SETTINGS

ReadYaml = Callable[[str], Any]
COLLECTOR = "stack/collector/config.yaml"
PROMETHEUS = "stack/prometheus/prometheus.yml"
ALERTMANAGER = "stack/alertmanager/alertmanager.yml"
DATA_SOURCES = "stack/grafana/provisioning/datasources/kvpath.yaml"


def checked(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def target_ports(services: dict[str, Any], name: str) -> str:
    """Finds the port that a container listens on, from its own health check."""
    (url,) = (part for part in services[name]["healthcheck"]["test"] if "127.0.0.1" in part)
    return re.findall(r":(\d+)", url)[-1]


# ── Collector ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_spans_pass_the_memory_limiter_first_and_go_to_tempo(read_yaml: ReadYaml) -> None:
    config = read_yaml(COLLECTOR)
    pipeline = config["service"]["pipelines"]["traces"]
    assert pipeline == {
        "receivers": ["otlp"],
        "processors": ["memory_limiter", "batch"],
        "exporters": ["otlphttp/tempo"],
    }
    tempo = read_yaml("stack/tempo/tempo.yaml")["distributor"]["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert (
        config["exporters"]["otlphttp/tempo"]["endpoint"]
        .rstrip("}")
        .endswith(f"http://tempo:{tempo.rpartition(':')[2]}")
    )


def test_the_collector_holds_core_components_only(read_yaml: ReadYaml) -> None:
    config = read_yaml(COLLECTOR)
    used = {
        kind: {name.partition("/")[0] for name in config[kind]} for kind in ("receivers", "processors", "exporters")
    }
    assert used == {"receivers": {"otlp"}, "processors": {"memory_limiter", "batch"}, "exporters": {"otlphttp"}}
    assert "extensions" not in config


def test_the_collector_takes_its_own_configuration(tool: Callable[[str], Path], repository: Path) -> None:
    checked(tool("otelcol"), "validate", f"--config={repository / COLLECTOR}")


# ── Tempo ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tempo_has_no_block_that_its_version_dropped(read_yaml: ReadYaml, services: dict[str, Any]) -> None:
    assert services["tempo"]["image"].startswith("grafana/tempo:3.")
    config = read_yaml("stack/tempo/tempo.yaml")
    assert not {"ingester", "compactor", "ingester_client", "metrics_generator_client"} & set(config)
    assert config["server"]["http_listen_port"] == int(target_ports(services, "tempo"))


def test_everything_that_tempo_keeps_lies_in_its_volume(repository: Path, services: dict[str, Any]) -> None:
    paths = re.findall(
        r"^\s+\w*(?:path|dir): (\S+)$", (repository / "stack/tempo/tempo.yaml").read_text(), re.MULTILINE
    )
    assert len(paths) == 5
    (mounted,) = (v.partition(":")[2] for v in services["tempo"]["volumes"] if v.startswith("tempo:"))
    assert all(path.startswith(f"{mounted}/") for path in paths)


def test_retention_is_the_same_for_who_plans_it_and_who_does_it(read_yaml: ReadYaml) -> None:
    config = read_yaml("stack/tempo/tempo.yaml")
    planned = config["backend_scheduler"]["provider"]["compaction"]["compaction"]["block_retention"]
    assert config["backend_worker"]["compaction"]["block_retention"] == planned


# ── Prometheus and Alertmanager ──────────────────────────────────────────────────────────────────────────────────


def test_prometheus_takes_its_configuration_and_the_alert_rules(
    tool: Callable[[str], Path], repository: Path, tmp_path: Path
) -> None:
    config = (repository / PROMETHEUS).read_text()
    config = config.replace("/etc/kvpath/alerts", str(repository / "dashboards/alerts"))
    config = config.replace("/etc/kvpath/targets", str(tmp_path))
    for role in ("prefill", "decode"):
        (tmp_path / f"{role}.json").write_text(json.dumps([{"targets": [f"{role}:8000"]}]))
    assert "/etc/" not in config
    (tmp_path / "prometheus.yml").write_text(config)
    checked(tool("promtool"), "check", "config", "--lint=all", "--lint-fatal", tmp_path / "prometheus.yml")


def test_every_part_is_scraped_once_under_the_name_that_dashboards_use(
    read_yaml: ReadYaml, services: dict[str, Any]
) -> None:
    jobs = {job["job_name"]: job for job in read_yaml(PROMETHEUS)["scrape_configs"]}
    assert set(jobs) == {"router", "prefill", "decode", "collector", "exporter", "prometheus"}
    assert {SETTINGS.job_prefill, SETTINGS.job_decode} <= set(jobs)
    for name in ("router", "exporter"):
        assert jobs[name]["static_configs"] == [{"targets": [f"{name}:{target_ports(services, name)}"]}]
    reader = read_yaml(COLLECTOR)["service"]["telemetry"]["metrics"]["readers"][0]["pull"]["exporter"]["prometheus"]
    assert jobs["collector"]["static_configs"] == [{"targets": [f"collector:{reader['port']}"]}]
    mounted = {config["target"] for config in services["prometheus"]["configs"]}
    for role in ("prefill", "decode"):
        (pattern,) = jobs[role]["file_sd_configs"][0]["files"]
        assert pattern.replace("*", "") in mounted


def test_exemplars_are_kept_and_the_scrape_interval_is_the_one_that_grafana_counts_with(
    read_yaml: ReadYaml, services: dict[str, Any]
) -> None:
    assert "--enable-feature=exemplar-storage" in services["prometheus"]["command"]
    interval = read_yaml(PROMETHEUS)["global"]["scrape_interval"]
    prometheus = read_yaml(DATA_SOURCES)["datasources"][0]
    assert prometheus["jsonData"]["timeInterval"] == interval == SETTINGS.scrape_interval
    assert services["prometheus"]["image"].endswith(f":v{prometheus['jsonData']['prometheusVersion']}")


def test_an_engine_that_is_down_keeps_only_its_own_alerts_quiet(read_yaml: ReadYaml) -> None:
    rules = [rule for group in read_yaml("dashboards/alerts/kvpath.yaml")["groups"] for rule in group["rules"]]
    alerts = {rule["alert"] for rule in rules if "alert" in rule}
    (inhibit,) = read_yaml(ALERTMANAGER)["inhibit_rules"]
    (source,) = (matcher.partition("=")[2] for matcher in inhibit["source_matchers"])
    assert source in alerts
    assert inhibit["target_matchers"] == [f"alertname!={source}"]
    assert inhibit["equal"] == ["job", "instance"]


def test_alertmanager_takes_its_configuration(tool: Callable[[str], Path], repository: Path) -> None:
    checked(tool("amtool"), "check-config", repository / ALERTMANAGER)


# ── Grafana ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_data_sources_have_the_uids_that_dashboards_ask_for(read_yaml: ReadYaml, repository: Path) -> None:
    given = {source["uid"]: source["type"] for source in read_yaml(DATA_SOURCES)["datasources"]}
    assert given == {SETTINGS.prometheus_uid: "prometheus", SETTINGS.tempo_uid: "tempo"}
    generated = list((repository / "dashboards/generated").glob("*.json"))
    assert generated
    for file in generated:
        asked = set(re.findall(r'"uid": "(kvpath-(?:prometheus|tempo)[^"]*)"', file.read_text()))
        assert asked
        assert asked <= set(given), file.name


def test_data_sources_lie_where_compose_puts_them(read_yaml: ReadYaml, services: dict[str, Any]) -> None:
    for source in read_yaml(DATA_SOURCES)["datasources"]:
        assert source["url"] == f"http://{source['type']}:{target_ports(services, source['type'])}"
        assert not source["editable"]


def test_exemplars_lead_to_traces_and_traces_to_metrics(read_yaml: ReadYaml) -> None:
    prometheus, tempo = read_yaml(DATA_SOURCES)["datasources"]
    (link,) = prometheus["jsonData"]["exemplarTraceIdDestinations"]
    assert (link["name"], link["datasourceUid"]) == ("trace_id", tempo["uid"])
    metrics = tempo["jsonData"]["tracesToMetrics"]
    assert metrics["datasourceUid"] == prometheus["uid"]
    assert [tag["key"] for tag in metrics["tags"]] == [names.ATTR_MODE]


def test_links_from_traces_ask_for_series_that_exist_with_the_label_that_they_filter_by(read_yaml: ReadYaml) -> None:
    known = known_series()
    metrics = read_yaml(DATA_SOURCES)["datasources"][1]["jsonData"]["tracesToMetrics"]
    (label,) = (tag["value"] for tag in metrics["tags"])
    asked = [series for query in metrics["queries"] for series in re.findall(r"(\w+)\{\$\$__tags\}", query["query"])]
    assert len(asked) == 4
    assert all(label in known[series] for series in asked)


def test_dashboards_come_from_the_committed_ones_into_the_folder_that_is_pushed_to(
    read_yaml: ReadYaml, services: dict[str, Any]
) -> None:
    (provider,) = read_yaml("stack/grafana/provisioning/dashboards/kvpath.yaml")["providers"]
    assert (provider["folderUid"], provider["folder"]) == (SETTINGS.folder_uid, "kvpath")
    assert f"./dashboards/generated:{provider['options']['path']}:ro" in services["grafana"]["volumes"]
