"""Grafana dashboards and Prometheus alert rules as code.

:mod:`dashboards.catalogue` lists every metric with its kind and labels, :mod:`dashboards.queries` asks questions of
them in PromQL and TraceQL, one module a dashboard (:mod:`dashboards.boards`) puts the questions on panels, and
:mod:`dashboards.grafana` writes Grafana's JSON. ``python -m dashboards`` writes ``generated/`` and the alert
rules again.
"""

from dashboards.expressions import Expression, expressions

__all__ = ["Expression", "expressions"]
