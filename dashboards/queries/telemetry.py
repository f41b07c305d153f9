"""Whether the figures of the other dashboards can be believed."""

from __future__ import annotations

from dashboards import collector_metrics as collector
from dashboards import engine_metrics as engines
from dashboards import exporter_metrics as exporter
from dashboards import prometheus_metrics as prometheus
from dashboards import router_metrics as router
from dashboards.promql import IN_MODE, both, differs, equals, growth, quantile, rate, ratio, total

SCRAPED = f"avg by (job) ({prometheus.UP.value})"
SCRAPE_SECONDS = f"max by (job) ({prometheus.SCRAPE_SECONDS.value})"

ROUTER_SPANS = rate(router.TELEMETRY_SPANS.total, "outcome")
ROUTER_DROPPED = growth(router.TELEMETRY_SPANS, "instance", equals("outcome", router.DROPPED))
ROUTER_FAILED = growth(router.TELEMETRY_SPANS, "instance", equals("outcome", router.FAILED))
LOST = growth(engines.TELEMETRY_LOST, "job, instance, kind")
ROUTER_ERRORS = growth(router.TELEMETRY_ERRORS, "instance")
NOT_ANNOTATED = growth(router.ANNOTATIONS, "instance", equals("outcome", router.FAILED))
ENGINE_ERRORS = growth(engines.TELEMETRY_ERRORS, "job, instance")

COLLECTOR_IN = rate(collector.ACCEPTED.total, "instance")
COLLECTOR_OUT = rate(collector.SENT.total, "instance")
COLLECTOR_REFUSED = growth(collector.REFUSED, "instance")
COLLECTOR_NOT_SENT = growth(collector.NOT_SENT, "instance")
COLLECTOR_QUEUE = ratio(
    total(collector.QUEUE.value, "instance, exporter"), total(collector.QUEUE_CAPACITY.value, "instance, exporter")
)

TRACES = rate(exporter.TRACES.total, "mode, outcome", IN_MODE)
COMPLETE_SHARE = ratio(
    rate(exporter.TRACES.total, "mode", both(IN_MODE, differs("outcome", exporter.INCOMPLETE_OUTCOME))),
    rate(exporter.TRACES.total, "mode", IN_MODE),
)
INCOMPLETE = growth(exporter.INCOMPLETE, "reason")
LAG = f"max by (instance) ({exporter.LAG.value})"
WAITING = f"max by (instance) ({exporter.WAITING.value})"
POLL_ERRORS = growth(exporter.POLL_ERRORS, "instance")


def clock(q: float) -> str:
    return quantile(q, exporter.CLOCK, "mode", IN_MODE)
