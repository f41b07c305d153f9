"""Alert and recording rules for Prometheus, with a runbook for each alert.

The rules are made from the metrics' own names, like the dashboards; ``python -m dashboards`` writes ``kvpath.yaml``.
"""

from dashboards.alerts.groups import GROUPS
from dashboards.alerts.rules import Alert, Group, Record, to_yaml

ALERTS: tuple[Alert, ...] = tuple(rule for group in GROUPS for rule in group.rules if isinstance(rule, Alert))
RECORDS: tuple[Record, ...] = tuple(rule for group in GROUPS for rule in group.rules if isinstance(rule, Record))

__all__ = ["ALERTS", "GROUPS", "RECORDS", "Alert", "Group", "Record", "to_yaml"]
