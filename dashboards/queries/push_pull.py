"""Push against pull: TTFT, TPOT, throughput and the critical path, by mode."""

from __future__ import annotations

from connector import names
from connector.stages import UNEXPLAINED
from dashboards import exporter_metrics as exporter
from dashboards import router_metrics as router
from dashboards.promql import IN_MODE, IN_STAGE, both, equals, mean, quantile, rate, ratio, select
from dashboards.settings import RANGE, WINDOW


def difference(bound: str) -> str:
    """Push minus pull; several exporters divide the traces among them, so the mean of theirs is shown."""
    return f"avg by (bound) ({select(exporter.DIFFERENCE.value, equals('bound', bound))})"


SAMPLES = f"sum by (mode) ({exporter.SAMPLES.value})"

TRAFFIC_SHARE = ratio(
    rate(router.REQUESTS.total, "mode", IN_MODE), rate(router.REQUESTS.total, ""), "on () group_left ()"
)
_WEIGHTS = f"max by (mode) ({router.SPLIT_WEIGHT.value})"
SPLIT_SHARE = ratio(_WEIGHTS, f"sum ({_WEIGHTS})", "on () group_left ()")
_A_MINUTE_AGO = f"max by (mode) ({router.SPLIT_WEIGHT.value} offset 1m)"
SPLIT_CHANGES = f"{_WEIGHTS} != {_A_MINUTE_AGO}"


def ttft(q: float) -> str:
    return quantile(q, router.TTFT, "mode", IN_MODE)


def tpot(q: float) -> str:
    return quantile(q, router.TPOT, "mode", IN_MODE)


THROUGHPUT = rate(router.REQUESTS.total, "mode", both(IN_MODE, 'status=~"2.."'))


def _in_stage(mode: str, by: str, more: str = "", window: str = WINDOW) -> str:
    """Seconds of the path in a stage, for each request: divided by requests, so that stages add up to mean TTFT."""
    return ratio(
        rate(exporter.CRITICAL_PATH.sum, by, both(equals("mode", mode), more), window),
        rate(exporter.TTFT.count, "", equals("mode", mode), window),
        "on () group_left ()",
    )


def stage_over_time(mode: str, stage: str) -> str:
    return _in_stage(mode, "stage", equals("stage", stage))


STAGES_SIDE_BY_SIDE = ratio(
    rate(exporter.CRITICAL_PATH.sum, "mode, stage", IN_MODE, RANGE),
    rate(exporter.TTFT.count, "mode", IN_MODE, RANGE),
    "on (mode) group_left ()",
)
STAGE_DIFFERENCE = (
    f"({_in_stage(names.MODE_PUSH, 'stage', window=RANGE)}) - on (stage) "
    f"({_in_stage(names.MODE_PULL, 'stage', window=RANGE)})"
)


def stage(q: float) -> str:
    return quantile(q, exporter.CRITICAL_PATH, "mode, stage", both(IN_MODE, IN_STAGE))


OVERLAPPED = mean(exporter.OVERLAPPED, "mode", IN_MODE)
UNEXPLAINED_SHARE = ratio(
    rate(exporter.CRITICAL_PATH.sum, "mode", both(IN_MODE, equals("stage", UNEXPLAINED))),
    rate(exporter.TTFT.sum, "mode", IN_MODE),
    "on (mode)",
)
