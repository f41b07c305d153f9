"""Traced push and pull connectors: upstream's NIXL connectors with telemetry around their public hooks.

The only module that imports vLLM. Every override first or last calls ``super()`` and returns exactly what it
returned; what telemetry adds is guarded (:mod:`connector.hooks`): it counts its own exceptions and goes on. The names
of upstream that this relies on are listed in :mod:`connector.contract` and checked when an engine starts.

Load with ``--kv-transfer-config``::

    {"kv_connector": "TracedPushConnector", "kv_connector_module_path": "connector.nixl",
     "kv_role": "kv_producer", "engine_id": "prefill-0",
     "kv_connector_extra_config": {"kvpath_otlp_endpoint": "http://127.0.0.1:4318"}}
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorRole,
)
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlPullConnector, NixlPushConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats, NixlPromMetrics
from vllm.distributed.nixl_utils import NixlWrapper
from vllm.v1.kv_cache_interface import FullAttentionSpec

from connector import contract, names, runtime
from connector.fewcores import OPTION_FEW_CORES, few_cores
from connector.hooks import SchedulerHooks, WorkerHooks
from connector.metrics import SAMPLES_KEY, EngineMetrics
from connector.requests import RequestStory
from connector.reuse import ReuseScheduler
from connector.runtime import Runtime
from connector.tap import NixlTap
from connector.worker_story import WorkerStory, agent_name

__all__ = [
    "KVConnectorHandshakeMetadata",
    "KVConnectorRole",
    "MultiConnector",
    "TracedMetrics",
    "TracedPromMetrics",
    "TracedPullConnector",
    "TracedPushConnector",
    "TracedStats",
    "on_few_cores",
    "runtime_of",
]

logger = logging.getLogger(__name__)


class TracedStats(NixlKVConnectorStats):
    """Upstream's statistics and kvpath's samples; both travel to the API server in one dictionary."""

    def reset(self) -> None:
        super().reset()
        self.data[SAMPLES_KEY] = []

    def is_empty(self) -> bool:
        return super().is_empty() and not self.data.get(SAMPLES_KEY)

    @classmethod
    def from_data(cls, data: dict[str, Any] | None) -> TracedStats:
        """Rebuilds statistics from what crossed a process border; keys that upstream's part lacks start empty."""
        stats = cls()
        stats.data.update(data or {})
        return stats


class TracedPromMetrics(NixlPromMetrics):
    """Observes upstream's statistics and kvpath's samples on the engine's ``/metrics``."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        kinds = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
        classes = {kind: metric_types[metric_class] for kind, metric_class in kinds.items()}
        self._engine_metrics = EngineMetrics(classes, labelnames, per_engine_labelvalues)
        self._failed = False

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        super().observe(transfer_stats_data, engine_idx)
        try:
            self._engine_metrics.observe(transfer_stats_data.get(SAMPLES_KEY, ()), engine_idx)
        except Exception:  # runs in the API server's output loop: an exception here would end the engine
            if not self._failed:
                logger.exception("kvpath metrics failed; serving goes on, further failures are silent")
            self._failed = True


class TracedMetrics:
    """Mixed in before an upstream connector: its statistics and metrics carry kvpath's samples as well."""

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TracedStats:
        return TracedStats.from_data(data)

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> TracedPromMetrics:
        return TracedPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


class _Traced(TracedMetrics):
    """Mixed in before an upstream NIXL connector: the same connector, observed."""

    mode: str

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        contract.check()
        with on_few_cores(vllm_config):
            super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]
        self.runtime_use = runtime_of(vllm_config)
        self.runtime = self.runtime_use.runtime
        ledger = self.runtime.ledger
        if role == KVConnectorRole.SCHEDULER:
            requests = RequestStory(self.runtime.context)
            ledger.on_idle(requests.idle)
            self.scheduler_hooks = SchedulerHooks(ledger, requests, self.mode, self.runtime.instance)
        else:
            worker = self.connector_worker  # type: ignore[attr-defined]
            story = WorkerStory(
                self.runtime.context,
                rank=worker.tp_rank,
                world_size=worker.world_size,
                agent=worker.nixl_wrapper.name,
                rank_of=lambda agent: _rank_of(worker, agent),
            )
            ledger.on_idle(story.idle)
            self.worker_hooks = WorkerHooks(ledger, story)
            worker.nixl_wrapper = NixlTap(worker.nixl_wrapper, ledger, story)

    # --- scheduler ----------------------------------------------------------------------------------------------
    def on_new_request(self, request: Any) -> None:
        self.scheduler_hooks.new_request(request)
        super().on_new_request(request)  # type: ignore[misc]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> Any:
        self.scheduler_hooks.allocated(request, num_external_tokens)
        return super().update_state_after_alloc(request, blocks, num_external_tokens)  # type: ignore[misc]

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        hooks = self.scheduler_hooks
        if hooks.unscheduled:
            hooks.scheduled(scheduler_output)
        metadata = super().build_connector_meta(scheduler_output)  # type: ignore[misc]
        if hooks.carriers:
            hooks.attach(metadata)
        return metadata

    def request_finished(self, request: Any, block_ids: Any) -> Any:
        result = super().request_finished(request, block_ids)  # type: ignore[misc]
        self.scheduler_hooks.finished(request, result)
        return result

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        result = super().request_finished_all_groups(request, block_ids)  # type: ignore[misc]
        self.scheduler_hooks.finished(request, result)
        return result

    def update_connector_output(self, connector_output: Any) -> None:
        super().update_connector_output(connector_output)  # type: ignore[misc]
        if self.scheduler_hooks.before_first_token or self.scheduler_hooks.reading:
            self.scheduler_hooks.output(connector_output)

    def take_events(self) -> Any:
        if self.scheduler_hooks.before_first_token:
            self.scheduler_hooks.step_ended()
        return super().take_events()  # type: ignore[misc]

    # --- worker -------------------------------------------------------------------------------------------------
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self.worker_hooks.start(self._connector_metadata)  # type: ignore[attr-defined]
        super().start_load_kv(forward_context, **kwargs)  # type: ignore[misc]

    def get_finished(self, finished_req_ids: set[str]) -> Any:
        results = super().get_finished(finished_req_ids)  # type: ignore[misc]
        self.worker_hooks.finished(results)
        return results

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        results = super().get_transfer_results(finished_req_ids)  # type: ignore[misc]
        self.worker_hooks.transfer_results(results)
        return results

    # --- both ---------------------------------------------------------------------------------------------------
    def get_kv_connector_stats(self) -> Any:
        upstream = super().get_kv_connector_stats()  # type: ignore[misc]
        if upstream is None and not self.runtime.samples.waiting:
            return None
        return _with_samples(upstream, self.runtime)

    def shutdown(self) -> None:
        try:
            super().shutdown()  # type: ignore[misc]
        finally:
            self.runtime_use.release()


def _with_samples(upstream: Any, runtime: Runtime) -> TracedStats | None:
    """Upstream's statistics with the samples that wait, or ``None`` when there is neither."""
    try:
        taken = runtime.samples.take()
    except Exception:
        runtime.ledger.error()
        taken = []
    if upstream is None and not taken:
        return None
    stats = TracedStats.from_data(upstream.data if upstream is not None else None)
    stats.data[SAMPLES_KEY] = taken  # type: ignore[assignment]
    return stats


def runtime_of(vllm_config: Any) -> runtime.Use:
    """Takes one use of the process's telemetry runtime; the first makes it from the engine's KV transfer settings."""
    transfer = vllm_config.kv_transfer_config
    service = names.SERVICE_DECODE if transfer.kv_role == "kv_consumer" else names.SERVICE_PREFILL
    return runtime.acquire(lambda: Runtime(service, transfer.engine_id, transfer.kv_connector_extra_config))


def on_few_cores(vllm_config: Any) -> contextlib.AbstractContextManager[None]:
    """Inside, this process and the NIXL agents made wait instead of spin, if the engine's option says so."""
    options = vllm_config.kv_transfer_config.kv_connector_extra_config
    return few_cores(bool(options.get(OPTION_FEW_CORES)), NixlWrapper)


def _rank_of(worker: Any, agent: str) -> int:
    for agents in list(worker._remote_agents.values()):
        for rank, name in list(agents.items()):
            if agent_name(name) == agent:
                return rank[1] if isinstance(rank, tuple) else rank
    return -1


class TracedPushConnector(_Traced, NixlPushConnector):
    """Upstream's push connector (P WRITEs into D), observed."""

    mode = names.MODE_PUSH


class TracedPullConnector(_Traced, ReuseScheduler, NixlPullConnector):
    """Upstream's pull connector (D READs from P), observed; with ``bidirectional_kv_xfer`` it serves reuse as well."""

    mode = names.MODE_PULL

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        # A sliding window's or a state's blocks say nothing about a shorter prefix: what is kept could not be cut.
        groups = kv_cache_config.kv_cache_groups
        if role == KVConnectorRole.SCHEDULER and all(isinstance(g.kv_cache_spec, FullAttentionSpec) for g in groups):
            self.start_reuse(
                vllm_config.kv_transfer_config.kv_connector_extra_config,
                kv_cache_config,
                instance=self.runtime.instance,
                rank=vllm_config.parallel_config.data_parallel_index,
                pinned=self.scheduler_hooks.pinned,
            )

    def on_new_request(self, request: Any) -> None:
        super().on_new_request(request)
        offer = self.judge_offer(request)
        if offer is not None:
            self.scheduler_hooks.offered(request, offer)
