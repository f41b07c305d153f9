"""Mode reuse: the KV that D keeps between the turns of a conversation."""

from __future__ import annotations

from connector import names
from dashboards import engine_metrics as engines
from dashboards import router_metrics as router
from dashboards import vllm_metrics as vllm
from dashboards.promql import ON_ENGINE, both, differs, equals, growth, quantile, rate, ratio, select, total
from dashboards.settings import SETTINGS

_HITS = rate(router.REUSE_LOOKUPS.total, "", equals("outcome", names.REUSE_HIT))
_LATER_TURNS = rate(router.REUSE_LOOKUPS.total, "", differs("outcome", names.REUSE_MISS))

LOOKUPS = rate(router.REUSE_LOOKUPS.total, "outcome")
HIT_RATE = ratio(_HITS, rate(router.REUSE_LOOKUPS.total, ""))
HIT_RATE_OF_LATER_TURNS = ratio(_HITS, _LATER_TURNS)


def age(q: float) -> str:
    return quantile(q, router.REUSE_AGE, "")


NOT_KEPT = growth(router.REUSE_NOT_KEPT, "reason")
STORE_ERRORS = growth(router.REUSE_STORE_ERRORS, "instance")
OFFERED = rate(router.REUSE_TOKENS.total, "")
TOKENS = rate(engines.REUSE_TOKENS.total, "outcome", ON_ENGINE)

_ON_DECODE = both(equals("job", SETTINGS.job_decode), ON_ENGINE)
_KEPT = both(_ON_DECODE, equals("mode", names.MODE_REUSE))
PINNED = total(engines.BLOCKS_PINNED.value, "instance", _ON_DECODE)
PINNED_SHARE = ratio(PINNED, total(engines.BLOCKS_PINNED_LIMIT.value, "instance", _ON_DECODE))
KV_USAGE = f"max by (instance) ({select(vllm.KV_USAGE.value, _ON_DECODE)})"
EXPIRED_SHARE = ratio(
    rate(engines.BLOCKS_HELD_SECONDS.count, "", both(_KEPT, equals("reason", names.RELEASE_LEASE_EXPIRED))),
    rate(engines.BLOCKS_HELD_SECONDS.count, "", _KEPT),
)

CONVERSATIONS = total(router.CONVERSATIONS.value, "instance")
CONVERSATIONS_BYTES = total(router.CONVERSATIONS_BYTES.value, "instance")
EVICTED = growth(router.CONVERSATIONS_EVICTED, "instance")
