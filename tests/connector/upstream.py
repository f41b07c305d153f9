"""Engines without an engine core: the real connectors, scheduler's and worker's side, with real NIXL agents.

An :class:`InProcessEngine` makes the calls that vLLM's scheduler and model runner make of a connector, in their order,
on KV caches of a few blocks. Only the model is missing. Import it after vLLM (the ``vllm`` fixture).
"""

from __future__ import annotations

import pickle
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from connector import names
from connector.nixl import KVConnectorRole

BLOCKS, HEADS, BLOCK_SIZE, HEAD_SIZE = 16, 3, 32, 64
LAYERS = ("model.layers.0.attn", "model.layers.1.attn")
STEP_LIMIT_S = 20.0


def free_port(count: int = 1) -> int:
    """A port such that it and the ``count - 1`` next ones are free."""
    while True:
        sockets = [socket.socket() for _ in range(count)]
        try:
            sockets[0].bind(("127.0.0.1", 0))
            port: int = sockets[0].getsockname()[1]
            for offset in range(1, count):
                sockets[offset].bind(("127.0.0.1", port + offset))
        except OSError:
            continue
        finally:
            for opened in sockets:
                opened.close()
        return port


def vllm_config(model: str, connector: str, module: str | None, role: str, engine_id: str, **extra: Any) -> VllmConfig:
    config = VllmConfig(
        model_config=ModelConfig(
            model=model, dtype="float32", enforce_eager=True, max_model_len=512, skip_tokenizer_init=True
        ),
        cache_config=CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=False),
        scheduler_config=SchedulerConfig(
            max_num_seqs=4,
            max_num_batched_tokens=512,
            max_model_len=512,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
        ),
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=KVTransferConfig(
            kv_connector=connector,
            kv_connector_module_path=module,
            kv_role=role,
            engine_id=engine_id,
            kv_buffer_device="cpu",
            kv_connector_extra_config=extra,
        ),
    )
    config.cache_config.kv_cache_layout = "LBHNC"  # the engine core resolves it from the workers
    config.cache_config.num_gpu_blocks = BLOCKS
    return config


def kv_cache_config() -> KVCacheConfig:
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=HEADS, head_size=HEAD_SIZE, dtype=torch.float32)
    return KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(list(LAYERS), spec)])


def one_process_group(config: VllmConfig) -> None:
    """The tensor-parallel group of one rank that workers ask for; made once a process."""
    if parallel_state.model_parallel_is_initialized():
        return
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(1, 0, f"file://{tempfile.mktemp()}", 0, backend="gloo")
        parallel_state.initialize_model_parallel(1, 1)


def new_request(request_id: str, params: dict[str, Any] | None, tokens: int = 3 * BLOCK_SIZE) -> Request:
    extra = None if params is None else {"kv_transfer_params": params}
    sampling = SamplingParams(max_tokens=1, extra_args=extra)
    return Request(request_id, list(range(tokens)), sampling, None, arrival_time=time.time())


def blocks_of(ids: Iterable[int]) -> KVCacheBlocks:
    return KVCacheBlocks(([KVCacheBlock(block) for block in ids],))


def scheduled(*request_ids: str, computed: int = 0) -> SchedulerOutput:
    output = SchedulerOutput.make_empty()
    output.scheduled_new_reqs = [SimpleNamespace(req_id=each, num_computed_tokens=computed) for each in request_ids]
    return output


def make_connector(config: VllmConfig, role: KVConnectorRole) -> Any:
    connector_class = KVConnectorFactory.get_connector_class(config.kv_transfer_config)
    with set_current_vllm_config(config):
        return connector_class(config, role, kv_cache_config())


def transfer_results(worker: Any) -> Any:
    """What the model runner asks a connector for: ``get_finished`` before vLLM 0.32."""
    if hasattr(KVConnectorBase_V1, "get_transfer_results"):
        return worker.get_transfer_results(set())
    sent, received = worker.get_finished(set())
    return SimpleNamespace(finished_sending=sent or set(), finished_recving=received or set(), failed_recving=set())


def connector_output(results: Any) -> KVConnectorOutput:
    ended = {"finished_sending": results.finished_sending, "finished_recving": results.finished_recving}
    if results.failed_recving:
        ended["failed_recving"] = results.failed_recving
    return KVConnectorOutput(**ended)


class InProcessEngine:
    """Scheduler's and worker's connector of one engine, and the KV cache that they move."""

    def __init__(self, config: VllmConfig, fill: float) -> None:
        one_process_group(config)
        self.scheduler = make_connector(config, KVConnectorRole.SCHEDULER)
        self.worker = make_connector(config, KVConnectorRole.WORKER)
        shape = (BLOCKS, HEADS, BLOCK_SIZE, 2 * HEAD_SIZE)
        self.kv = {layer: torch.rand(shape) + fill for layer in LAYERS}
        self.received: set[str] = set()
        self.failed: set[str] = set()
        self.sent: set[str] = set()
        self.samples: list[Any] = []
        with set_current_vllm_config(config):
            self.worker.register_kv_caches(self.kv)
            self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): self.worker.get_handshake_metadata()})

    def receive(self, request: Request) -> None:
        self.scheduler.on_new_request(request)

    def allocate(self, request: Request, blocks: Iterable[int]) -> int:
        """Schedules a request as far as its blocks; returns the tokens that come from the other engine."""
        tokens, _ = self.scheduler.get_num_new_matched_tokens(request, 0)
        self.scheduler.update_state_after_alloc(request, blocks_of(blocks), tokens)
        return tokens

    def step(self, *new_requests: str, computed: int = 0) -> None:
        """One engine step: metadata to the worker, transfers, results and statistics back."""
        output = scheduled(*new_requests, computed=computed)
        metadata = pickle.loads(pickle.dumps(self.scheduler.build_connector_meta(output)))
        self.worker.bind_connector_metadata(metadata)
        self.worker.start_load_kv(None)
        results = transfer_results(self.worker)
        stats = self.worker.get_kv_connector_stats()
        self.worker.clear_connector_metadata()
        self.scheduler.update_connector_output(connector_output(results))
        own = self.scheduler.get_kv_connector_stats()
        if own is not None and not own.is_empty():
            stats = own if stats is None else stats.aggregate(own)
        if stats is not None:
            self.samples += stats.data["kvpath_samples"]
        list(self.scheduler.take_events())
        self.sent |= results.finished_sending
        self.received |= results.finished_recving - results.failed_recving
        self.failed |= results.failed_recving

    def token(self, request: Request) -> None:
        request.append_output_token_ids(7)

    def finish(self, request: Request, blocks: list[int], status: str = "FINISHED_LENGTH_CAPPED") -> Any:
        request.status = RequestStatus[status]
        request.num_computed_tokens = request.num_prompt_tokens
        return self.scheduler.request_finished_all_groups(request, (blocks,))

    def close(self) -> None:
        self.worker.shutdown()
        self.scheduler.shutdown()


def run_until(condition: Callable[[], bool], *engines: InProcessEngine) -> None:
    """Steps the engines, as their idle loops do, until ``condition`` holds."""
    deadline, pause = time.monotonic() + STEP_LIMIT_S, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not so within {STEP_LIMIT_S} s"
        for engine in engines:
            engine.step()
        pause.wait(0.001)  # the writer and handshake threads of both engines need the interpreter too


PREFILL, DECODE = "prefill-0", "decode-0"


class EnginePair:
    """A prefill and a decode engine that serve whole requests. ``model`` is a directory with a ``config.json``."""

    def __init__(self, model: str, connector: str, module: str | None, **extra: Any) -> None:
        self._made = 0
        engines, self.ports = [], []
        for engine_id, role, fill in ((PREFILL, "kv_producer", 10.0), (DECODE, "kv_consumer", 0.0)):
            if "connectors" in extra:
                extra["connectors"] = [{**child, "kv_role": role} for child in extra["connectors"]]
            self.ports.append(free_port(2))
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1")
                patch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(self.ports[-1]))
                engines.append(InProcessEngine(vllm_config(model, connector, module, role, engine_id, **extra), fill))
        self.p, self.d = engines

    def ids(self) -> tuple[str, str, str]:
        """Router's request id, P's and D's engine request id."""
        self._made += 1
        base = f"rid-{self._made}"
        return base, f"cmpl-{base}-0-aaaaaaaa", f"cmpl-{base}-0-bbbbbbbb"

    def push(self, *, registration_first: bool = True) -> str:
        """Serves one request by push, checks the KV that arrived, and returns the router's request id."""
        rid, p_id, d_id = self.ids()
        prefill = new_request(p_id, {"do_remote_decode": True, "do_remote_prefill": False, **legs(rid, "push", 1)})
        where = {
            "remote_engine_id": PREFILL,
            "remote_host": "127.0.0.1",
            "remote_port": self.ports[0],
            "tp_size": 1,
            "pp_size": 1,
            "remote_request_id": rid,
            "remote_block_ids": None,
        }
        decode = new_request(
            d_id, {"do_remote_prefill": True, "do_remote_decode": False, **where, **legs(rid, "push", 2)}
        )
        self.forget_kv()
        if registration_first:
            self._decode_allocates(decode)
            run_until(lambda: d_id in self._registrations_on_p(), self.p, self.d)
            self._prefills(prefill)
        else:
            self._prefills(prefill)
            self._decode_allocates(decode)
        self._complete(p_id, d_id, decode)
        return rid

    def pull(self) -> str:
        """Serves one request by pull; as :meth:`push`."""
        rid, p_id, d_id = self.ids()
        prefill = new_request(p_id, {"do_remote_decode": True, "do_remote_prefill": False, **legs(rid, "pull", 1)})
        self.forget_kv()
        kept, params = self._prefills(prefill)
        assert kept
        decode = new_request(d_id, {**params, **legs(rid, "pull", 2)})
        self._decode_allocates(decode)
        self._complete(p_id, d_id, decode)
        return rid

    def _registrations_on_p(self) -> dict[str, Any]:
        """Upstream's own: the registrations that have arrived and are not matched."""
        push = getattr(self.p.worker, "_connectors", [self.p.worker])[0]
        pending: dict[str, Any] = push.connector_worker._pending_d_registrations
        return pending

    def forget_kv(self) -> None:
        for layer in LAYERS:
            self.d.kv[layer].zero_()

    def _decode_allocates(self, decode: Request) -> None:
        self.d.receive(decode)
        assert self.d.allocate(decode, [1, 2, 3]) == decode.num_prompt_tokens
        self.d.step()

    def _prefills(self, prefill: Request) -> Any:
        self.p.receive(prefill)
        assert self.p.allocate(prefill, [4, 5, 6]) == 0
        self.p.step(prefill.request_id)
        self.p.token(prefill)
        return self.p.finish(prefill, [4, 5, 6])

    def _complete(self, p_id: str, d_id: str, decode: Request) -> None:
        run_until(lambda: d_id in self.d.received and p_id in self.p.sent, self.p, self.d)
        self.d.token(decode)
        self.d.step()
        assert self.d.finish(decode, [1, 2, 3]) == (False, None)
        for layer in LAYERS:
            assert torch.equal(self.d.kv[layer][1:4], self.p.kv[layer][4:7])

    def close(self) -> None:
        self.d.close()
        self.p.close()


def legs(rid: str, mode: str, leg: int) -> dict[str, str]:
    """What the router adds to ``kv_transfer_params``; the trace id is made of the request's number."""
    number = int(rid.rpartition("-")[2])
    traceparent = f"00-{0xABC000 + number:032x}-{leg:016x}-01"
    return {names.PARAM_MODE: mode, names.PARAM_TRACEPARENT: traceparent, names.PARAM_REQUEST_ID: rid}
