"""What a rule is, and how a file of rules is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from dashboards.settings import SETTINGS

Severity = Literal["critical", "warning", "info"]  # somebody has to look now; today; when it fits
_HEAD = "# Written by `python -m dashboards` from dashboards/alerts/*.py: change those.\n"


@dataclass(frozen=True, slots=True)
class Record:
    """A recording rule; ``labels`` are those of the series that it makes."""

    name: str
    expr: str
    labels: frozenset[str]

    def as_rule(self) -> dict[str, Any]:
        return {"record": self.name, "expr": self.expr}


@dataclass(frozen=True, slots=True)
class Alert:
    """``hold`` is how long ``expr`` must have an answer; ``summary`` may use its labels and its value."""

    name: str
    severity: Severity
    expr: str
    hold: str
    summary: str
    dashboard: str  # uid of where to look first

    @property
    def runbook(self) -> str:
        return f"{SETTINGS.runbooks}/{self.name}.md"

    def as_rule(self) -> dict[str, Any]:
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.hold,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "runbook": self.runbook, "dashboard": f"/d/{self.dashboard}"},
        }


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    rules: tuple[Record | Alert, ...]


def to_yaml(groups: Iterable[Group]) -> str:
    """Returns a rules file of Prometheus."""
    import yaml  # only who writes rules needs it

    written = [{"name": group.name, "rules": [rule.as_rule() for rule in group.rules]} for group in groups]
    return _HEAD + yaml.safe_dump({"groups": written}, sort_keys=False, width=10_000)
