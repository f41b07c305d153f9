"""All groups of rules."""

from dashboards.alerts import reuse, serving, telemetry, transfers
from dashboards.alerts.rules import Group

GROUPS: tuple[Group, ...] = (transfers.GROUP, serving.GROUP, telemetry.GROUP, reuse.GROUP)
