"""Metrics of the critical-path exporter with their kinds and labels; the names are :mod:`connector.names`'s."""

from __future__ import annotations

from connector import names
from dashboards.metric import Metric, counter, gauge, histogram

CRITICAL_PATH = histogram(names.METRIC_EXPORTER_CRITICAL_PATH, ("mode", "stage"))
TTFT = histogram(names.METRIC_EXPORTER_TTFT, ("mode",))
OVERLAPPED = histogram(names.METRIC_EXPORTER_OVERLAPPED, ("mode",))
TRACES = counter(names.METRIC_EXPORTER_TRACES, ("mode", "outcome"))
INCOMPLETE = counter(names.METRIC_EXPORTER_INCOMPLETE, ("reason",))
CLOCK = histogram(names.METRIC_EXPORTER_CLOCK, ("mode",))
LAG = gauge(names.METRIC_EXPORTER_LAG)
WAITING = gauge(names.METRIC_EXPORTER_WAITING)
POLL_ERRORS = counter(names.METRIC_EXPORTER_POLL_ERRORS)
DIFFERENCE = gauge(names.METRIC_EXPORTER_DIFFERENCE, ("bound",))
SAMPLES = gauge(names.METRIC_EXPORTER_SAMPLES, ("mode",))

INCOMPLETE_OUTCOME = "incomplete"

METRICS: tuple[Metric, ...] = tuple(value for value in dict(globals()).values() if isinstance(value, Metric))
