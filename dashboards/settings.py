"""What is fixed about the dashboards: uids, data sources, intervals, where the runbooks are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Data source uids are those that ``stack/grafana/provisioning`` gives; jobs those of the scrape configuration."""

    prometheus_uid: str = "kvpath-prometheus"
    tempo_uid: str = "kvpath-tempo"
    folder_uid: str = "kvpath"
    tags: tuple[str, ...] = ("kvpath",)
    refresh: str = "30s"
    from_time: str = "now-1h"
    scrape_interval: str = "15s"  # no shorter steps are asked for
    job_prefill: str = "prefill"
    job_decode: str = "decode"
    runbooks: str = "dashboards/alerts/runbooks"  # in the repository


SETTINGS = Settings()
WINDOW = "$__rate_interval"  # Grafana: at least four scrapes
RANGE = "$__range"  # the whole time shown
TRACES_UID = "kvpath-traces"
