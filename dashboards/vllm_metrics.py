"""vLLM's own metrics that dashboards and alerts use, as vLLM 0.32 exposes them; 0.26 lacks the two that say so.

Their names are vLLM's, so they are typed here and nowhere else; a test looks each one up in the installed vLLM.
"""

from __future__ import annotations

from dashboards.metric import Metric, counter, gauge, histogram

LABELS = ("model_name", "engine")  # of every metric of an engine, the connector's too

RUNNING = gauge("vllm:num_requests_running", LABELS)
WAITING = gauge("vllm:num_requests_waiting_by_reason", (*LABELS, "reason"))  # capacity | deferred
KV_FETCH = gauge("vllm:num_requests_kv_fetch_by_stage", (*LABELS, "stage"))  # D only; not in 0.26
KV_USAGE = gauge("vllm:kv_cache_usage_perc", LABELS)  # 1 is full
PREFIX_QUERIES = counter("vllm:prefix_cache_queries", LABELS)  # tokens
PREFIX_HITS = counter("vllm:prefix_cache_hits", LABELS)  # tokens
PREEMPTIONS = counter("vllm:num_preemptions", LABELS)
PROMPT_TOKENS = counter("vllm:prompt_tokens", LABELS)
GENERATED_TOKENS = counter("vllm:generation_tokens", LABELS)
QUEUE_SECONDS = histogram("vllm:request_queue_time_seconds", LABELS)
NIXL_FAILED_TRANSFERS = counter("vllm:nixl_num_failed_transfers", LABELS)
NIXL_FAILED_NOTIFICATIONS = counter("vllm:nixl_num_failed_notifications", LABELS)
NIXL_LATE_NOTIFICATIONS = counter("vllm:nixl_num_notifications_after_expiry", LABELS)  # not in 0.26

FETCH_IN_PROGRESS = "in_progress"  # stage of KV_FETCH
DEFERRED = "deferred"  # reason of WAITING: for KV, among others

METRICS: tuple[Metric, ...] = tuple(value for value in dict(globals()).values() if isinstance(value, Metric))
