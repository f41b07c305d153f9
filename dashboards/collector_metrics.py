"""The OpenTelemetry Collector's own metrics that dashboards and alerts use, as its Prometheus reader names them.

Their names are the Collector's, so they are typed here and nowhere else; a test scrapes a Collector and compares.
"""

from __future__ import annotations

from dashboards.metric import Metric, counter, gauge

_SCOPE = ("otel_scope_name", "otel_scope_schema_url", "otel_scope_version")
_RECEIVER = (*_SCOPE, "receiver", "transport")
_EXPORTER = (*_SCOPE, "exporter")

ACCEPTED = counter("otelcol_receiver_accepted_spans", _RECEIVER)
REFUSED = counter("otelcol_receiver_refused_spans", _RECEIVER)
SENT = counter("otelcol_exporter_sent_spans", _EXPORTER)
NOT_SENT = counter("otelcol_exporter_send_failed_spans", _EXPORTER)
QUEUE = gauge("otelcol_exporter_queue_size", (*_EXPORTER, "data_type"))
QUEUE_CAPACITY = gauge("otelcol_exporter_queue_capacity", (*_EXPORTER, "data_type"))

METRICS: tuple[Metric, ...] = tuple(value for value in dict(globals()).values() if isinstance(value, Metric))
