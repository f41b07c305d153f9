"""Annotations: marks in Grafana at what kvpath did. Writing one never raises and never takes long.

Whoever annotates does its own work first, works as well without a Grafana, and says a failure once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from stack.grafana.client import Grafana
from stack.grafana.errors import GrafanaError
from stack.grafana.settings import GrafanaSettings, read_settings

TIMEOUT_S = 3.0  # to connect, and for every silence after that


class Annotator:
    """Writes annotations into one Grafana. May be used by several threads."""

    def __init__(self, settings: GrafanaSettings | None, problem: str = "", timeout_s: float = TIMEOUT_S) -> None:
        self._settings = settings
        self._problem = problem
        self._timeout_s = timeout_s

    def annotate(
        self, text: str, tags: Sequence[str], start: float | None = None, end: float | None = None
    ) -> str | None:
        """Writes an annotation from ``start`` to ``end`` (seconds since 1970; none: now, none: one instant).

        Returns ``None`` when it is written, else one line that says why it is not.
        """
        if self._settings is None:
            return self._problem
        begin_ms = round((time.time() if start is None else start) * 1000)
        end_ms = None if end is None else round(end * 1000)
        try:
            with Grafana(self._settings, self._timeout_s) as grafana:
                grafana.annotate(text, tags, begin_ms, end_ms)
        except GrafanaError as error:
            return f"no annotation in Grafana: {error}"
        return None


def annotator_from_environment() -> Annotator | None:
    """Returns ``None`` when no Grafana is named; one that always says why not when its settings make no sense."""
    try:
        settings = read_settings()
    except GrafanaError as error:
        return Annotator(None, f"no annotation in Grafana: {error}")
    return None if settings is None else Annotator(settings)


def split_text(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Says how traffic is split from now on, and how it was before."""
    return f"split: {_shares(after)} (was {_shares(before)})"


def _shares(split: Mapping[str, float]) -> str:
    total = sum(split.values())
    if total <= 0:
        return "the default mode"
    return ", ".join(f"{mode} {weight / total:.0%}" for mode, weight in split.items() if weight > 0)
