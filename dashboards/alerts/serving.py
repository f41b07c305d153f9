"""Engines that are not there, and modes that have become slower than they were against each other."""

from __future__ import annotations

from connector import names
from dashboards import exporter_metrics as exporter
from dashboards import prometheus_metrics as prometheus
from dashboards import router_metrics as router
from dashboards.alerts.rules import Alert, Group, Record
from dashboards.promql import equals, growth_of, quantile, select
from dashboards.settings import SETTINGS

_ENGINES = f'job=~"{SETTINGS.job_prefill}|{SETTINGS.job_decode}"'
NOT_READY = Alert(
    "KvpathEngineNotReady",
    "critical",
    f"{select(prometheus.UP.value, _ENGINES)} == 0",
    "2m",
    "{{ $labels.job }} engine {{ $labels.instance }} does not answer",
    "kvpath-engines",
)
AVOIDED = Alert(
    "KvpathEngineAvoided",
    "critical",
    f"min by (engine_id, role) ({router.ENGINE_HEALTHY.value}) == 0",
    "2m",
    "The router sends nothing to {{ $labels.role }} engine {{ $labels.engine_id }}",
    "kvpath-engines",
)

_PUSH, _PULL = equals("mode", names.MODE_PUSH), equals("mode", names.MODE_PULL)


def _median(mode: str) -> str:
    return quantile(0.5, router.TTFT, "", mode, "30m")


def _enough(mode: str) -> str:
    return f"{growth_of(router.TTFT.count, '', mode, '30m')} > 50"


PUSH_OVER_PULL = Record(
    "kvpath:ttft_push_over_pull:30m",
    f"({_median(_PUSH)}) / (({_median(_PULL)}) > 0) and ({_enough(_PUSH)}) and ({_enough(_PULL)})",
    frozenset(),
)
_BASELINE = f"quantile_over_time(0.5, {PUSH_OVER_PULL.name}[6h] offset 1h)"


def _labelled(expr: str, mode: str) -> str:
    return f'label_replace({expr}, "mode", "{mode}", "", "")'


REGRESSED = Alert(
    "KvpathTtftRegressed",
    "warning",
    f"{_labelled(f'{PUSH_OVER_PULL.name} > 1.25 * {_BASELINE}', names.MODE_PUSH)} or "
    f"{_labelled(f'{PUSH_OVER_PULL.name} < 0.8 * {_BASELINE}', names.MODE_PULL)}",
    "15m",
    'TTFT in {{ $labels.mode }} got worse against the other mode: push over pull is now {{ $value | printf "%.2f" }}',
    "kvpath-push-pull",
)
SLOWER = Alert(
    "KvpathPushSlower",
    "info",
    f"avg ({select(exporter.DIFFERENCE.value, equals('bound', 'low'))}) > 0",
    "30m",
    "Push brings the first token later than pull, by at least {{ $value | humanizeDuration }}",
    "kvpath-push-pull",
)

GROUP = Group("kvpath-serving", (PUSH_OVER_PULL, NOT_READY, AVOIDED, REGRESSED, SLOWER))
