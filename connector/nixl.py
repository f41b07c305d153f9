"""Traced push and pull connectors: upstream's NIXL connectors with telemetry around their public hooks.

The only module that imports vLLM. Every override first or last calls ``super()`` and returns exactly what it
returned; what telemetry adds runs inside :func:`_guarded` code that counts its own exceptions and goes on. The names
of upstream that this relies on are listed in :mod:`connector.contract` and checked when an engine starts.

Load with ``--kv-transfer-config``::

    {"kv_connector": "TracedPushConnector", "kv_connector_module_path": "connector.nixl",
     "kv_role": "kv_producer", "engine_id": "prefill-0",
     "kv_connector_extra_config": {"kvpath_otlp_endpoint": "http://127.0.0.1:4318"}}
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from prometheus_client import Counter, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorRole,
)
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlPullConnector, NixlPushConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats, NixlPromMetrics
from vllm.distributed.nixl_utils import NixlWrapper

from connector import contract, names, runtime
from connector.carrier import Carrier, from_params
from connector.clock import PROCESS_CLOCK, now
from connector.fewcores import OPTION_FEW_CORES, few_cores
from connector.ledger import Ledger
from connector.metrics import SAMPLES_KEY, EngineMetrics, Samples
from connector.requests import RequestStory
from connector.runtime import Runtime
from connector.tap import NixlTap
from connector.worker_story import WorkerStory, agent_name

__all__ = [
    "KVConnectorHandshakeMetadata",
    "KVConnectorRole",
    "MultiConnector",
    "TracedPromMetrics",
    "TracedPullConnector",
    "TracedPushConnector",
    "TracedStats",
    "on_few_cores",
    "runtime_of",
]

logger = logging.getLogger(__name__)

METADATA_ATTRIBUTE = "kvpath_carriers"  # on upstream's connector metadata: {request id: Carrier}
F = TypeVar("F", bound=Callable[..., None])


def _guarded(hook: F) -> F:
    """Makes a telemetry method safe to call from an engine thread: its exceptions are counted, never raised."""

    @functools.wraps(hook)
    def safe(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            hook(self, *args, **kwargs)
        except Exception:
            self.ledger.error()

    return safe  # type: ignore[return-value]


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
        classes = {"counter": metric_types[Counter], "histogram": metric_types[Histogram]}
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


class SchedulerHooks:
    """What the scheduler's hooks record. Called on the engine core thread only; every method is guarded."""

    def __init__(self, ledger: Ledger, story: RequestStory, mode: str) -> None:
        self.ledger = ledger
        self._story = story
        self._mode = mode
        self._carriers: dict[str, Carrier] = {}
        self._before_first_token: dict[str, Any] = {}
        self._unscheduled: set[str] = set()

    @_guarded
    def new_request(self, request: Any) -> None:
        at_ns = now()
        params = request.kv_transfer_params
        if not params:
            return
        carrier = from_params(params, request.request_id, self._mode, request.trace_headers)
        if params.get("do_remote_decode"):
            self._carriers[request.request_id] = carrier
            self._unscheduled.add(request.request_id)
            self.ledger.record(
                self._story.prefill_received,
                at_ns,
                request.request_id,
                carrier,
                request.arrival_time,
                request.num_prompt_tokens,
            )
        elif params.get("do_remote_prefill"):
            self._carriers[request.request_id] = carrier
            self._before_first_token[request.request_id] = request
            self.ledger.record(self._story.decode_received, at_ns, request.request_id, carrier)

    @_guarded
    def allocated(self, request: Any, external_tokens: int) -> None:
        carrier = self._carriers.get(request.request_id)
        if carrier is None or carrier.stamp_ns or request.request_id not in self._before_first_token:
            return
        at_ns = now()
        self._carriers[request.request_id] = carrier.at(PROCESS_CLOCK.wall(at_ns))
        self.ledger.record(self._story.decode_allocated, at_ns, request.request_id, external_tokens)

    @_guarded
    def scheduled(self, scheduler_output: Any) -> None:
        if not self._unscheduled:
            return
        at_ns = now()
        for new in scheduler_output.scheduled_new_reqs:
            if new.req_id in self._unscheduled:
                self._unscheduled.discard(new.req_id)
                self.ledger.record(self._story.prefill_scheduled, at_ns, new.req_id)

    @_guarded
    def attach(self, metadata: Any) -> None:
        """Puts carriers on the metadata of this step, for the worker, and on registrations, for P's worker."""
        carried = {}
        for request, registration in metadata.push_registrations.items():
            carrier = self._carriers.get(request)
            if carrier is not None:
                registration[names.PARAM_TELEMETRY] = {names.PARAM_TRACEPARENT: carrier.traceparent}
                carried[request] = carrier
        for request in (*metadata.reqs_to_recv, *metadata.reqs_to_send):
            carrier = self._carriers.pop(request, None)
            if carrier is not None:
                carried[request] = carrier
        setattr(metadata, METADATA_ATTRIBUTE, carried)

    @_guarded
    def finished(self, request: Any, result: tuple[bool, Any]) -> None:
        at_ns, blocks_kept = now(), result[0]
        error = request.status.name.lower() if request.status.name in _FAILURES else None
        if self._before_first_token.pop(request.request_id, None) is not None:
            handler = self._story.decode_first_token if request.num_output_tokens else self._story.decode_finished
            self.ledger.record(handler, at_ns, request.request_id, *([] if request.num_output_tokens else [error]))
        carrier = self._carriers.get(request.request_id)
        if carrier is None:
            return
        if (request.kv_transfer_params or {}).get("do_remote_decode"):
            self._unscheduled.discard(request.request_id)
            self.ledger.record(self._story.prefill_finished, at_ns, request.request_id, error)
        if blocks_kept:
            self._carriers[request.request_id] = carrier.at(PROCESS_CLOCK.wall(at_ns))
        else:
            del self._carriers[request.request_id]

    @_guarded
    def output(self, connector_output: Any) -> None:
        received = connector_output.finished_recving
        if received:
            self.ledger.record(self._story.decode_known, now(), frozenset(received))

    @_guarded
    def step_ended(self) -> None:
        """Called once a step, after its tokens were appended: looks for requests that got their first."""
        if not self._before_first_token:
            return
        at_ns = now()
        for request_id in [key for key, request in self._before_first_token.items() if request.num_output_tokens]:
            del self._before_first_token[request_id]
            self.ledger.record(self._story.decode_first_token, at_ns, request_id)


_FAILURES = ("FINISHED_ABORTED", "FINISHED_IGNORED", "FINISHED_ERROR")


class WorkerHooks:
    """What the worker's hooks record. Called on the worker's main thread only; every method is guarded."""

    def __init__(self, ledger: Ledger, story: WorkerStory) -> None:
        self.ledger = ledger
        self._story = story

    @_guarded
    def start(self, metadata: Any) -> None:
        carriers: dict[str, Carrier] = getattr(metadata, METADATA_ATTRIBUTE, None) or {}
        if not carriers:
            return
        at_ns = now()
        record = self.ledger.record
        for request, carrier in carriers.items():
            registration = metadata.push_registrations.get(request)
            wanted = metadata.reqs_to_recv.get(request)
            if registration is not None:
                engine, stages = registration["remote_engine_id"], registration.get("remote_pp_size", 1)
                record(self._story.receipts.staged, at_ns, request, carrier, engine, stages)
            elif wanted is not None and any(wanted.local_block_ids):
                peer = wanted.remote
                record(self._story.receipts.read_wanted, at_ns, request, carrier, peer.engine_id, peer.request_id)
            if request in metadata.reqs_to_send:
                record(self._story.offers.held, at_ns, request, carrier)
            if request in metadata.push_finished_blocks:
                record(self._story.offers.finished, at_ns, request, carrier)

    @_guarded
    def transfer_results(self, results: Any) -> None:
        """``results``: vLLM's ``KVConnectorTransferResults`` (since 0.32)."""
        self._finished(results.finished_sending, results.finished_recving, results.failed_recving)

    @_guarded
    def finished(self, results: tuple[Iterable[str] | None, Iterable[str] | None]) -> None:
        """``results``: sent and received, as vLLM's ``get_finished`` returns them."""
        self._finished(*results)

    def _finished(
        self, sent: Iterable[str] | None, received: Iterable[str] | None, failed: Iterable[str] | None = ()
    ) -> None:
        at_ns = now()
        failures = frozenset(failed or ())
        if failures:
            self.ledger.record(self._story.receipts.finished, at_ns, failures, "receive_failed")
        if received:
            self.ledger.record(self._story.receipts.finished, at_ns, frozenset(received) - failures, None)
        if sent:
            self.ledger.record(self._story.offers.released, at_ns, frozenset(sent))


class _Traced:
    """Mixed in before an upstream NIXL connector: the same connector, observed."""

    mode: str
    scheduler_hooks_class = SchedulerHooks
    worker_hooks_class = WorkerHooks
    tap_class = NixlTap

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
            self.scheduler_hooks = self.scheduler_hooks_class(ledger, requests, self.mode)
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
            self.worker_hooks = self.worker_hooks_class(ledger, story)
            worker.nixl_wrapper = self.tap_class(worker.nixl_wrapper, ledger, story)

    # --- scheduler ----------------------------------------------------------------------------------------------
    def on_new_request(self, request: Any) -> None:
        self.scheduler_hooks.new_request(request)
        super().on_new_request(request)  # type: ignore[misc]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> Any:
        self.scheduler_hooks.allocated(request, num_external_tokens)
        return super().update_state_after_alloc(request, blocks, num_external_tokens)  # type: ignore[misc]

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self.scheduler_hooks.scheduled(scheduler_output)
        metadata = super().build_connector_meta(scheduler_output)  # type: ignore[misc]
        self.scheduler_hooks.attach(metadata)
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
        self.scheduler_hooks.output(connector_output)

    def take_events(self) -> Any:
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
        try:
            return _with_samples(upstream, self.runtime.samples)
        except Exception:
            self.runtime.ledger.error()
            return upstream

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TracedStats:
        return TracedStats.from_data(data)

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> TracedPromMetrics:
        return TracedPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        try:
            super().shutdown()  # type: ignore[misc]
        finally:
            self.runtime_use.release()


def _with_samples(upstream: Any, samples: Samples) -> TracedStats | None:
    """Upstream's statistics with the samples that wait, or ``None`` when there is neither."""
    taken = samples.take()
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


class TracedPullConnector(_Traced, NixlPullConnector):
    """Upstream's pull connector (D READs from P), observed."""

    mode = names.MODE_PULL
