"""Deployments that Prometheus might have watched: with no engine, one of each kind, many, and without traffic.

Each world is ten minutes of samples of every known series, at a time of its own, as one OpenMetrics page with times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from connector import names
from connector.stages import STAGE_NAMES, UNEXPLAINED
from dashboards import (
    collector_metrics,
    engine_metrics,
    exporter_metrics,
    prometheus_metrics,
    router_metrics,
    vllm_metrics,
)
from dashboards.metric import Metric

MINUTES = 10
BOUNDS = ("0.01", "1", "+Inf")
MODES = (*names.TRANSFER_MODES, names.MODE_PLAIN)
OUTCOMES = {
    router_metrics.EARLY_CHOICES: ("kept", "regretted"),
    router_metrics.ANNOTATIONS: ("written", "failed"),
    router_metrics.TELEMETRY_SPANS: ("ended", "exported", "dropped", "failed"),
    router_metrics.REUSE_LOOKUPS: names.REUSE_OUTCOMES,
    engine_metrics.TRANSFERS: ("done", "timeout"),
    engine_metrics.REUSE_TOKENS: ("reused", "recomputed"),
    exporter_metrics.TRACES: ("complete", "incomplete", "failed"),
}
REASONS = {
    engine_metrics.BLOCKS_HELD_SECONDS: (names.RELEASE_DONE, names.RELEASE_LEASE_EXPIRED, names.RELEASE_ABORTED),
    vllm_metrics.WAITING: ("capacity", "deferred"),
}
STAGES = {vllm_metrics.KV_FETCH: ("waiting_to_start", "in_progress")}
VALUES: Mapping[str, tuple[str, ...]] = {
    "mode": MODES,
    "stage": (*STAGE_NAMES, UNEXPLAINED),
    "operation": (names.OPERATION_WRITE, names.OPERATION_READ),
    "direction": ("sent", "received"),
    "last_arrival": (names.LAST_ARRIVAL_REGISTRATION, names.LAST_ARRIVAL_PREFILL),
    "kind": ("evicted", "unmatched"),
    "status": ("200", "503"),
    "bound": ("low", "median", "high"),
    "role": ("prefill", "decode"),
    "engine_id": ("prefill-0", "decode-0"),
    "le": BOUNDS,
}


@dataclass(frozen=True)
class World:
    """``engines`` of each kind, with as many routers and exporters; ``traffic`` False: nothing grows."""

    name: str
    ends_at: int  # seconds
    engines: int
    traffic: bool = True

    def jobs(self) -> Mapping[str, tuple[Iterable[Metric], int]]:
        """Metrics and instances of each job."""
        of_engine = (*engine_metrics.METRICS, *vllm_metrics.METRICS)
        parts = max(self.engines, 1)
        return {
            "prefill": (of_engine, self.engines),
            "decode": (of_engine, self.engines),
            "router": (router_metrics.METRICS, parts),
            "exporter": (exporter_metrics.METRICS, parts),
            "collector": (collector_metrics.METRICS, 1),
        }


def page(worlds: Iterable[World]) -> str:
    """OpenMetrics wants a metric's samples together, and a series' in the order of time."""
    lines: dict[str, list[str]] = {}
    for world in sorted(worlds, key=lambda world: world.ends_at):
        for job, (metrics, instances) in world.jobs().items():
            for number in range(instances):
                target = f'job="{job}",instance="{job}-{number}:8000"'
                for metric in (*metrics, *prometheus_metrics.METRICS):
                    lines.setdefault(metric.name, []).extend(_samples(world, metric, target, number))
    kinds = {metric.name: metric.kind for metrics, _ in World("", 0, 1).jobs().values() for metric in metrics}
    return (
        "".join(f"# TYPE {name} {kinds.get(name, 'gauge')}\n{''.join(lines[name])}" for name in sorted(lines))
        + "# EOF\n"
    )


def _samples(world: World, metric: Metric, target: str, number: int) -> Iterator[str]:
    for place, (series, labels) in enumerate(_children(metric)):
        bucket = BOUNDS.index(labels["le"]) if "le" in labels else len(BOUNDS)
        written = ",".join([target, *(f'{name}="{value}"' for name, value in labels.items())])
        for minute in range(MINUTES + 1):
            value = _value(metric, (1 + number + place % 3) * (bucket + 1), minute if world.traffic else 0)
            yield f"{series}{{{written}}} {value} {world.ends_at - 60 * (MINUTES - minute)}\n"


def _value(metric: Metric, weight: int, minute: int) -> float:
    if metric is prometheus_metrics.UP or metric is router_metrics.ENGINE_HEALTHY:
        return 1
    if metric is vllm_metrics.KV_USAGE:
        return 0.5
    return 10 * weight if metric.kind == "gauge" else weight * minute


def _children(metric: Metric) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Every series of a metric with every combination of label values."""
    choices = dict(VALUES)
    choices["outcome"] = OUTCOMES.get(metric, ())
    choices["reason"] = REASONS.get(metric, ("this", "that"))
    choices["stage"] = STAGES.get(metric, choices["stage"])
    for series, labels in metric.series().items():
        own = sorted(labels - {"job", "instance", "le"}) + (["le"] if "le" in labels else [])
        for values in product(*(choices.get(label) or ("x",) for label in own)):
            yield series, dict(zip(own, values, strict=True))
