"""Mode reuse: hits that fail to appear, memory held for nobody, memory that others need."""

from __future__ import annotations

from connector import names
from dashboards import engine_metrics as engines
from dashboards import router_metrics as router
from dashboards import vllm_metrics as vllm
from dashboards.alerts.rules import Alert, Group
from dashboards.promql import both, differs, equals, growth, growth_of, ratio, select, total
from dashboards.settings import SETTINGS

_ENGINE = "job, instance"
_ON = f"on ({_ENGINE})"
_WINDOW = "30m"
_HITS = growth(router.REUSE_LOOKUPS, "", equals("outcome", names.REUSE_HIT), _WINDOW)
_LATER_TURNS = growth(router.REUSE_LOOKUPS, "", differs("outcome", names.REUSE_MISS), _WINDOW)
HITS_RARE = Alert(
    "KvpathReuseHitsRare",
    "warning",
    f"{ratio(f'({_HITS} or 0 * {_LATER_TURNS})', _LATER_TURNS)} < 0.5 and {_LATER_TURNS} > 20",
    "15m",
    "Only {{ $value | humanizePercentage }} of later turns find their history on D",
    "kvpath-engines",
)

_ON_DECODE = equals("job", SETTINGS.job_decode)
_LIMIT = total(engines.BLOCKS_PINNED_LIMIT.value, _ENGINE, _ON_DECODE)
_KEPT = both(_ON_DECODE, equals("mode", names.MODE_REUSE))
_EXPIRED = growth_of(
    engines.BLOCKS_HELD_SECONDS.count, _ENGINE, both(_KEPT, equals("reason", names.RELEASE_LEASE_EXPIRED)), _WINDOW
)
_RELEASED = growth_of(engines.BLOCKS_HELD_SECONDS.count, _ENGINE, _KEPT, _WINDOW)
EXPIRING = Alert(
    "KvpathReuseExpiring",
    "info",
    f"{ratio(_EXPIRED, _RELEASED)} > 0.8 and {_ON} {_RELEASED} > 20",
    "15m",
    "{{ $labels.instance }}: {{ $value | humanizePercentage }} of what it keeps expires unused",
    "kvpath-engines",
)

AT_LIMIT = Alert(
    "KvpathKeptBlocksAtLimit",
    "warning",
    f"{ratio(total(engines.BLOCKS_PINNED.value, _ENGINE, _ON_DECODE), _LIMIT)} > 0.9",
    "10m",
    "{{ $labels.instance }} uses {{ $value | humanizePercentage }} of what it may keep: later turns leave nothing",
    "kvpath-engines",
)
_FULL = f"max by ({_ENGINE}) ({select(vllm.KV_USAGE.value, _ON_DECODE)}) > 0.9"
CROWDED = Alert(
    "KvpathKeptBlocksCrowdDecode",
    "warning",
    f"{_FULL} and {_ON} {total(engines.BLOCKS_PINNED.value, _ENGINE, _ON_DECODE)} > 0",
    "10m",
    "{{ $labels.instance }}: the cache is full to {{ $value | humanizePercentage }}, with blocks kept for later turns",
    "kvpath-engines",
)

GROUP = Group("kvpath-reuse", (HITS_RARE, EXPIRING, AT_LIMIT, CROWDED))
