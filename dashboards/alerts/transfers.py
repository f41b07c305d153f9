"""KV transfers that hang, fail, or are slow; leases; blocks that are held."""

from __future__ import annotations

from connector import names
from dashboards import engine_metrics as engines
from dashboards import vllm_metrics as vllm
from dashboards.alerts.rules import Alert, Group, Record
from dashboards.promql import both, differs, equals, growth, growth_of, quantile, rate, ratio, total
from dashboards.settings import SETTINGS

_ENGINE = "job, instance"
_ON = f"on ({_ENGINE})"
_SENT = equals("direction", "sent")
_ON_PREFILL = equals("job", SETTINGS.job_prefill)

# --- Stuck --------------------------------------------------------------------------------------------------------
_FETCHING = total(vllm.KV_FETCH.value, _ENGINE, equals("stage", vllm.FETCH_IN_PROGRESS))
_DEFERRED = total(
    vllm.WAITING.value, _ENGINE, both(equals("job", SETTINGS.job_decode), equals("reason", vllm.DEFERRED))
)
_LOADING = f"({_FETCHING} or {_DEFERRED})"  # the former where vLLM has it
_STARTED = growth_of(engines.STAGE_SECONDS.count, _ENGINE, equals("stage", "first_step"), "5m")
STUCK = Alert(
    "KvpathTransfersStuck",
    "critical",
    f"{_LOADING} > 0 unless {_ON} {_STARTED} > 0",
    "5m",
    "{{ $labels.instance }}: {{ $value }} requests wait for their KV, and none has got it for five minutes",
    "kvpath-transfer",
)

# --- Registered and never answered: what D sent until five minutes ago, less the completions that it has counted ----
_SENT_BEFORE = f"sum by ({_ENGINE}) ({engines.REGISTRATIONS.total}{{{_SENT}}} offset 5m)"
_COUNTED = total(engines.COMPLETIONS.total, _ENGINE, equals("mode", names.MODE_PUSH))
# A D that has restarted has sent less than five minutes ago, or nothing yet: its counters say nothing for that while.
_NOT_RESTARTED = f"{total(engines.REGISTRATIONS.total, _ENGINE, _SENT)} >= {_SENT_BEFORE}"
UNANSWERED_NOW = Record(
    "kvpath:registrations_unanswered:5m",
    f"({_SENT_BEFORE} - ({_COUNTED} or 0 * {_SENT_BEFORE})) and {_ON} ({_NOT_RESTARTED})",
    frozenset({"job", "instance"}),
)
_BEFORE = f"({UNANSWERED_NOW.name} offset 15m or 0 * {UNANSWERED_NOW.name})"
UNANSWERED = Alert(
    "KvpathRegistrationsUnanswered",
    "warning",
    f"{UNANSWERED_NOW.name} > 0 and {_ON} {UNANSWERED_NOW.name} > {_BEFORE}",
    "2m",
    "{{ $labels.instance }}: registrations of the last 15 minutes have had no completion for more than five",
    "kvpath-transfer",
)

# --- Leases and blocks on P ----------------------------------------------------------------------------------------
_EXPIRED = growth(engines.LEASES_EXPIRED, _ENGINE, _ON_PREFILL, "15m")
_OFFERED = both(_ON_PREFILL, differs("reason", names.RELEASE_ABORTED))
_RELEASED = growth_of(engines.BLOCKS_HELD_SECONDS.count, _ENGINE, _OFFERED, "15m")
LEASES = Alert(
    "KvpathLeasesExpiring",
    "warning",
    f"{_EXPIRED} > 2 and {_ON} {ratio(_EXPIRED, _RELEASED)} > 0.05",
    "5m",
    '{{ $labels.instance }}: {{ $value | printf "%.0f" }} leases expired in 15 minutes, more than 5 % of all',
    "kvpath-transfer",
)
_HELD = quantile(0.9, engines.BLOCKS_HELD_SECONDS, _ENGINE, _OFFERED, "15m")
HELD = Alert(
    "KvpathBlocksHeldTooLong",
    "warning",
    f"({_HELD}) > 10 and {_ON} max by ({_ENGINE}) ({vllm.KV_USAGE.value}{{{_ON_PREFILL}}}) > 0.5",
    "10m",
    "{{ $labels.instance }} holds blocks for up to {{ $value | humanizeDuration }} while its cache fills up",
    "kvpath-transfer",
)

# --- Failures ------------------------------------------------------------------------------------------------------
FAILING = Alert(
    "KvpathTransfersFailing",
    "critical",
    f"{growth(engines.TRANSFERS, f'{_ENGINE}, operation, outcome', differs('outcome', engines.DONE), '10m')} > 0",
    "0m",
    "{{ $labels.instance }}: a {{ $labels.operation }} failed with {{ $labels.outcome }}",
    "kvpath-transfer",
)
_EXPECTED = growth(engines.COMPLETIONS_EXPECTED, f"{_ENGINE}, mode", "", "15m")
_GOT = growth(engines.COMPLETIONS, f"{_ENGINE}, mode", "", "15m")
COMPLETIONS = Alert(
    "KvpathCompletionsMissing",
    "warning",
    f"{_EXPECTED} - ({_GOT} or 0 * {_EXPECTED}) > 1 + 0.01 * {_EXPECTED}",
    "5m",
    '{{ $labels.instance }} counted {{ $value | printf "%.0f" }} completions fewer than it expected, in 15 minutes',
    "kvpath-transfer",
)

# --- Rate, against its own baseline ---------------------------------------------------------------------------------
_KIND = f"{_ENGINE}, mode, operation"
RATE = Record(
    "kvpath:transfer_bytes_per_second:15m",
    ratio(
        rate(engines.TRANSFERRED_BYTES.total, _KIND, window="15m"),
        rate(engines.TRANSFER_SECONDS.total, _KIND, window="15m"),
    ),
    frozenset({"job", "instance", "mode", "operation"}),
)
_ENOUGH = f"{growth(engines.TRANSFERS, _KIND, equals('outcome', engines.DONE), '15m')} > 20"
COLLAPSED = Alert(
    "KvpathTransferRateCollapsed",
    "warning",
    f"{RATE.name} < 0.3 * quantile_over_time(0.5, {RATE.name}[6h] offset 30m) and on ({_KIND}) {_ENOUGH}",
    "10m",
    "{{ $labels.instance }}: {{ $labels.operation }} in {{ $labels.mode }} runs at {{ $value | humanize }}B/s, less "
    "than a third of what it did",
    "kvpath-transfer",
)

GROUP = Group(
    "kvpath-transfers", (UNANSWERED_NOW, RATE, STUCK, UNANSWERED, LEASES, HELD, FAILING, COMPLETIONS, COLLAPSED)
)
