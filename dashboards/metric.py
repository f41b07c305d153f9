"""A metric as PromQL sees it: its kind decides which series there are, and what they are called."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
TARGET_LABELS = frozenset({"job", "instance"})  # Prometheus adds them to every series that it scrapes
_SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}


@dataclass(frozen=True, slots=True)
class Metric:
    """``name`` is what the code that exposes it calls it: prometheus_client adds the suffixes."""

    name: str
    kind: Kind
    labels: frozenset[str] = frozenset()

    @property
    def total(self) -> str:
        return self._series("counter", "_total")

    @property
    def value(self) -> str:
        return self._series("gauge", "")

    @property
    def bucket(self) -> str:
        return self._series("histogram", "_bucket")

    @property
    def sum(self) -> str:
        return self._series("histogram", "_sum")

    @property
    def count(self) -> str:
        return self._series("histogram", "_count")

    def series(self) -> dict[str, frozenset[str]]:
        """Returns the labels of every series of this metric, by the series' name on ``/metrics``."""
        own = self.labels | TARGET_LABELS
        return {self.name + suffix: own | {"le"} if suffix == "_bucket" else own for suffix in _SUFFIXES[self.kind]}

    def _series(self, kind: Kind, suffix: str) -> str:
        if kind != self.kind:
            raise TypeError(f"{self.name} is a {self.kind}: it has no series of a {kind}")
        return self.name + suffix


def counter(name: str, labels: Iterable[str] = ()) -> Metric:
    return Metric(name, "counter", frozenset(labels))


def gauge(name: str, labels: Iterable[str] = ()) -> Metric:
    return Metric(name, "gauge", frozenset(labels))


def histogram(name: str, labels: Iterable[str] = ()) -> Metric:
    return Metric(name, "histogram", frozenset(labels))
