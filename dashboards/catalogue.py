"""Every series that a dashboard or an alert may ask for, by name, with its labels."""

from __future__ import annotations

from collections.abc import Mapping

from dashboards import (
    collector_metrics,
    engine_metrics,
    exporter_metrics,
    prometheus_metrics,
    router_metrics,
    vllm_metrics,
)

SOURCES = (router_metrics, engine_metrics, vllm_metrics, collector_metrics, exporter_metrics, prometheus_metrics)


def known_series() -> Mapping[str, frozenset[str]]:
    """Returns the labels of every known series, by the name that it has on ``/metrics``."""
    return {name: labels for source in SOURCES for metric in source.METRICS for name, labels in metric.series().items()}
