"""Engines and the router that feeds them."""

from __future__ import annotations

from dashboards import router_metrics as router
from dashboards import vllm_metrics as vllm
from dashboards.promql import IN_MODE, ON_ENGINE, equals, growth, quantile, rate, ratio, select, total

# Engines, by the address that Prometheus scrapes.
RUNNING = total(vllm.RUNNING.value, "job, instance", ON_ENGINE)
WAITING = total(vllm.WAITING.value, "job, instance, reason", ON_ENGINE)
FETCHING = total(vllm.KV_FETCH.value, "instance, stage", ON_ENGINE)
KV_USAGE = f"max by (job, instance) ({select(vllm.KV_USAGE.value, ON_ENGINE)})"
PREFIX_HITS = ratio(
    rate(vllm.PREFIX_HITS.total, "job, instance", ON_ENGINE),
    rate(vllm.PREFIX_QUERIES.total, "job, instance", ON_ENGINE),
)
PREEMPTIONS = growth(vllm.PREEMPTIONS, "job, instance", ON_ENGINE)
PROMPT_TOKENS = rate(vllm.PROMPT_TOKENS.total, "job, instance", ON_ENGINE)
GENERATED_TOKENS = rate(vllm.GENERATED_TOKENS.total, "job, instance", ON_ENGINE)


def queue(q: float) -> str:
    return quantile(q, vllm.QUEUE_SECONDS, "job, instance", ON_ENGINE)


# The router, by the names that its configuration gives to engines. Several routers have each their own view.
READY = f"min by (engine_id, role) ({router.ENGINE_HEALTHY.value})"
OUTSTANDING_REQUESTS = total(router.ENGINE_REQUESTS.value, "engine_id, role")
OUTSTANDING_WORK = total(router.ENGINE_WORK.value, "engine_id, role")
CHOSEN = rate(router.ENGINE_CHOSEN.total, "engine_id, role", IN_MODE)
REGRET = ratio(
    rate(router.EARLY_CHOICES.total, "", equals("outcome", router.REGRETTED)), rate(router.EARLY_CHOICES.total, "")
)
IN_FLIGHT = f"sum ({router.IN_FLIGHT.value})"
ANSWERS = rate(router.REQUESTS.total, "status", IN_MODE)
ERRORS = growth(router.ERRORS, "type")
FALLBACKS = growth(router.FALLBACKS, "reason")
DROPPED_PARAMS = growth(router.DROPPED_PARAMS, "instance")
RETRIES = growth(router.RETRIES, "instance")


def duration(q: float) -> str:
    return quantile(q, router.DURATION, "mode", IN_MODE)
