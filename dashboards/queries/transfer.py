"""KV transfers, from registration to release: the connector's metrics on the engines, and NIXL's counts beside them."""

from __future__ import annotations

from dashboards import engine_metrics as engines
from dashboards import vllm_metrics as vllm
from dashboards.promql import IN_MODE, ON_ENGINE, both, differs, equals, growth, quantile, rate, ratio

_HERE = both(IN_MODE, ON_ENGINE)
_PER_OPERATION = "mode, operation"


REGISTRATIONS = rate(engines.REGISTRATIONS.total, "direction", ON_ENGINE)
RENDEZVOUS_SHARE = ratio(
    rate(engines.RENDEZVOUS.total, "last_arrival", ON_ENGINE),
    rate(engines.RENDEZVOUS.total, "", ON_ENGINE),
    "on () group_left ()",
)


def rendezvous_wait(q: float) -> str:
    return quantile(q, engines.RENDEZVOUS_WAIT_SECONDS, "last_arrival", ON_ENGINE)


def stage(name: str, q: float) -> str:
    return quantile(q, engines.STAGE_SECONDS, "mode", both(_HERE, equals("stage", name)))


def stages_of(name: str) -> str:
    """How often a stage happened, each second."""
    return rate(engines.STAGE_SECONDS.count, "mode", both(_HERE, equals("stage", name)))


BYTES_WHILE_MOVING = ratio(
    rate(engines.TRANSFERRED_BYTES.total, _PER_OPERATION, _HERE),
    rate(engines.TRANSFER_SECONDS.total, _PER_OPERATION, _HERE),
)
BYTES = rate(engines.TRANSFERRED_BYTES.total, "operation, instance", _HERE)
_DONE = rate(engines.TRANSFERS.total, _PER_OPERATION, both(_HERE, equals("outcome", engines.DONE)))
BYTES_EACH = ratio(rate(engines.TRANSFERRED_BYTES.total, _PER_OPERATION, _HERE), _DONE)
DESCRIPTORS_EACH = ratio(rate(engines.DESCRIPTORS.total, _PER_OPERATION, _HERE), _DONE)
RUNS_EACH = ratio(rate(engines.RUNS.total, _PER_OPERATION, _HERE), _DONE)

COMPLETIONS_COUNTED = rate(engines.COMPLETIONS.total, "mode", _HERE)
COMPLETIONS_EXPECTED = rate(engines.COMPLETIONS_EXPECTED.total, "mode", _HERE)
COMPLETIONS_MISSING = (
    f"{growth(engines.COMPLETIONS_EXPECTED, 'mode', _HERE)} - {growth(engines.COMPLETIONS, 'mode', _HERE)}"
)

FAILURES = growth(engines.TRANSFERS, "mode, operation, outcome", both(_HERE, differs("outcome", engines.DONE)))
NIXL_FAILED_TRANSFERS = growth(vllm.NIXL_FAILED_TRANSFERS, "instance", ON_ENGINE)
NIXL_FAILED_NOTIFICATIONS = growth(vllm.NIXL_FAILED_NOTIFICATIONS, "instance", ON_ENGINE)
LEASES_EXPIRED = growth(engines.LEASES_EXPIRED, "mode, instance", _HERE)
LATE_NOTIFICATIONS = growth(vllm.NIXL_LATE_NOTIFICATIONS, "instance", ON_ENGINE)


def blocks_held(q: float) -> str:
    return quantile(q, engines.BLOCKS_HELD_SECONDS, "job, mode, reason", _HERE)


BLOCKS_RELEASED = rate(engines.BLOCKS_HELD_SECONDS.count, "job, mode, reason", _HERE)
