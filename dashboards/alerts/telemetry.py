"""Telemetry that loses something: figures that can be believed less."""

from __future__ import annotations

from dashboards import collector_metrics as collector
from dashboards import engine_metrics as engines
from dashboards import exporter_metrics as exporter
from dashboards import prometheus_metrics as prometheus
from dashboards import router_metrics as router
from dashboards.alerts.rules import Alert, Group
from dashboards.promql import growth, select
from dashboards.settings import SETTINGS

_PART = "job, instance"
_LOST = (
    growth(engines.TELEMETRY_LOST, _PART, "", "10m"),
    growth(router.TELEMETRY_SPANS, _PART, f'outcome=~"{router.DROPPED}|{router.FAILED}"', "10m"),
    growth(collector.REFUSED, _PART, "", "10m"),
    growth(collector.NOT_SENT, _PART, "", "10m"),
)
DROPPED = Alert(
    "KvpathTelemetryDropped",
    "warning",
    f"sum by ({_PART}) ({' or '.join(_LOST)}) > 0",
    "10m",
    '{{ $labels.job }} {{ $labels.instance }} keeps losing spans or facts: {{ $value | printf "%.0f" }} in 10 minutes',
    "kvpath-telemetry",
)
_ENGINES = f'job!~"{SETTINGS.job_prefill}|{SETTINGS.job_decode}"'
NOT_SCRAPED = Alert(
    "KvpathTargetDown",
    "warning",
    f"{select(prometheus.UP.value, _ENGINES)} == 0",
    "5m",
    "Prometheus does not reach {{ $labels.job }} {{ $labels.instance }}",
    "kvpath-telemetry",
)
BEHIND = Alert(
    "KvpathExporterBehind",
    "warning",
    f"{exporter.LAG.value} > 300",
    "10m",
    "{{ $labels.instance }} is {{ $value | humanizeDuration }} behind with counting traces",
    "kvpath-telemetry",
)

GROUP = Group("kvpath-telemetry", (DROPPED, NOT_SCRAPED, BEHIND))
