"""What telemetry costs the engine's threads: one fact, one tapped transfer, one request. ``python -m connector.bench``.

A request's cost is measured on the real hooks and the real tap, with the calls that a request really causes over 20
scheduler steps and 30 polls, on an agent that does nothing; the same calls on the bare agent are taken off. As in the
switch connector, a second connector's hooks run idle beside it. The drain thread's work is timed apart: it shares the
interpreter with the engine, not its thread.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from connector import names
from connector.bootstrap import Telemetry, start_telemetry
from connector.engine_context import EngineContext
from connector.hooks import SchedulerHooks, WorkerHooks
from connector.ledger import Ledger
from connector.metrics import Samples
from connector.requests import RequestStory
from connector.reuse_offer import Offer
from connector.spans import PresetIds, SpanWriter
from connector.tap import NixlTap
from connector.worker_story import WorkerStory

ROUNDS = 300
FACTS_A_ROUND = 200
POLLS = 30  # of one transfer in flight
STEPS = 20  # of the scheduler while a request is on the engine
DESCRIPTORS = list(range(1_000))
TARGET_FACT_NS = 3_000
TARGET_REQUEST_US = 50.0


class NullAgent:
    """A NIXL agent that does nothing, so that only the tap's own time is left."""

    name = "agent-here"
    state = "PROC"
    _telemetry = SimpleNamespace(totalBytes=1_000)

    def make_prepped_xfer(self, *args: Any, notif_msg: bytes) -> Any:
        return object()

    def transfer(self, handle: Any) -> str:
        return "PROC"

    def check_xfer_state(self, handle: Any) -> str:
        return self.state

    def get_xfer_telemetry(self, handle: Any) -> Any:
        return self._telemetry

    def send_notif(self, agent: str, notif_msg: bytes) -> None:
        return None

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        return {}


Hooks = tuple[SchedulerHooks, WorkerHooks, NixlTap]


class _Nowhere(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class Bench:
    """One engine's telemetry, with the hooks of a connector that is used and of one that is idle."""

    def __init__(self) -> None:
        ids = PresetIds()
        self.telemetry: Telemetry = start_telemetry("bench", None, exporter=_Nowhere(), id_generator=ids)
        self.ledger, self.samples, self.agent = Ledger(), Samples(), NullAgent()
        writer = SpanWriter(self.telemetry.tracer, ids, {names.ATTR_ENGINE_ID: "e"})
        context = EngineContext("e", writer, self.samples, self.ledger.losses)
        self.hooks: list[Hooks] = []
        for mode in (names.MODE_PUSH, names.MODE_PULL):  # the pull connector serves reuse as well
            requests, worker = RequestStory(context), WorkerStory(context, agent=NullAgent.name)
            for story in (requests, worker):
                self.ledger.on_idle(story.idle)
            hooks = (SchedulerHooks(self.ledger, requests, mode), WorkerHooks(self.ledger, worker))
            self.hooks.append((*hooks, NixlTap(self.agent, self.ledger, worker)))

    def steps(self, tap: Any, count: int = STEPS) -> None:
        """Steps in which nothing happens to the request."""
        output = SimpleNamespace(scheduled_new_reqs=[])
        results = SimpleNamespace(finished_sending=set(), finished_recving=set(), failed_recving=set())
        for _ in range(count):
            self._step(() if tap is self.agent else self.hooks, output, _metadata(), results)
            for _ in self.hooks:
                tap.get_new_notifs()

    def _step(self, hooks: Iterable[Hooks], output: Any, metadata: Any, results: Any) -> None:
        """What :mod:`connector.nixl` does in a step, with the same looks before the calls."""
        samples = self.samples
        for scheduler, worker, _ in hooks:
            if scheduler.unscheduled:
                scheduler.scheduled(output)
            if scheduler.carriers:
                scheduler.attach(metadata)
            worker.start(metadata)
            worker.transfer_results(results)
            if scheduler.before_first_token or scheduler.reading:
                scheduler.output(results)
            if scheduler.before_first_token:
                scheduler.step_ended()
            if samples.waiting:  # the scheduler's statistics
                samples.take()
            if samples.waiting:  # the worker's
                samples.take()

    def transfer(self, tap: Any, operation: str, message: bytes, polls: int = POLLS) -> None:
        handle = tap.make_prepped_xfer(operation, 1, DESCRIPTORS, 2, DESCRIPTORS, notif_msg=message)
        tap.transfer(handle)
        self.agent.state = "PROC"
        for _ in range(polls):
            tap.check_xfer_state(handle)
        self.agent.state = "DONE"
        tap.check_xfer_state(handle)
        tap.get_xfer_telemetry(handle)

    def prefill(self, mode: str, tapped: bool, number: int) -> None:
        """A request's life on P."""
        scheduler, worker, tap = self.hooks[mode != names.MODE_PUSH]
        request = _request(number, mode, do_remote_decode=True)
        rid = request.request_id
        if mode == names.MODE_REUSE:
            self._take_back(request, tapped)
        metadata = _metadata(reqs_to_send={rid: 0.0}, push_finished_blocks={rid: [[1]]} if mode == "push" else {})
        output = SimpleNamespace(scheduled_new_reqs=[SimpleNamespace(req_id=rid, num_computed_tokens=0)])
        results = _results(finished_sending={rid})
        if tapped:
            if mode != names.MODE_REUSE:
                scheduler.new_request(request)
                scheduler.allocated(request, 0)
            scheduler.scheduled(output)
            scheduler.finished(request, (True, {}))
            scheduler.attach(metadata)
            worker.start(metadata)
        if mode == names.MODE_PUSH:
            self.transfer(tap if tapped else self.agent, "WRITE", f"{rid}:1".encode())
        self.steps(tap if tapped else self.agent)
        if tapped:
            worker.transfer_results(results)

    def _take_back(self, request: Any, tapped: bool) -> None:
        """Mode reuse, on P: up to where the KV that D kept is there."""
        scheduler, worker, tap = self.hooks[1]
        rid = request.request_id
        metadata = _metadata(reqs_to_recv={rid: _wanted(f"{rid}-d")})
        if tapped:
            scheduler.new_request(request)
            scheduler.offered(request, Offer(names.REUSE_HIT, 100, 100))
            scheduler.allocated(request, 100)
            scheduler.attach(metadata)
            worker.start(metadata)
        self.transfer(tap if tapped else self.agent, "READ", f"{rid}-d:1".encode())
        if tapped:
            worker.transfer_results(_results(finished_recving={rid}))

    def decode(self, mode: str, tapped: bool, number: int) -> None:
        """A request's life on D."""
        scheduler, worker, tap = self.hooks[mode != names.MODE_PUSH]
        agent = tap if tapped else self.agent
        request = _request(number, mode, do_remote_prefill=True)
        rid = request.request_id
        registration = {"request_id": rid, "remote_engine_id": "p", "remote_pp_size": 1}
        push = {rid: registration} if mode == names.MODE_PUSH else {}
        metadata = _metadata(reqs_to_recv={rid: _wanted(f"{rid}-p")}, push_registrations=push)
        results = _results(finished_recving={rid})
        if tapped:
            scheduler.new_request(request)
            scheduler.allocated(request, 128)
            scheduler.attach(metadata)
            worker.start(metadata)
        if mode == names.MODE_PUSH:
            agent.send_notif("agent-there", notif_msg=b"HB:" + rid.encode())
        else:
            self.transfer(agent, "READ", f"{rid}-p:1".encode())
        self.steps(agent)
        if tapped:
            worker.transfer_results(results)
            scheduler.output(results)
            request.num_output_tokens = 1
            scheduler.step_ended()
            scheduler.finished(request, (mode == names.MODE_REUSE, None))
            if mode == names.MODE_REUSE:
                self._keep(rid)

    def _keep(self, rid: str) -> None:
        """Mode reuse, on D: blocks kept for the next turn, and freed."""
        scheduler, worker, _ = self.hooks[1]
        metadata = _metadata(reqs_to_send={rid: 0.0})
        scheduler.pinned(1, 1)
        scheduler.attach(metadata)
        worker.start(metadata)
        worker.transfer_results(_results(finished_sending={rid}))
        scheduler.pinned(0, 1)

    def added_us(self, life: Callable[[bool, int], None]) -> tuple[float, float]:
        """Median microseconds that telemetry adds to ``life`` on the engine's threads, and on the drain thread."""
        engine: dict[bool, list[int]] = {False: [], True: []}
        drain = []
        for number in range(ROUNDS):
            for tapped in (False, True):
                start = time.perf_counter_ns()
                life(tapped, number)
                engine[tapped].append(time.perf_counter_ns() - start)
            start = time.perf_counter_ns()
            self.ledger.drain()
            drain.append(time.perf_counter_ns() - start)
        added = statistics.median(engine[True]) - statistics.median(engine[False])
        return added / 1_000, statistics.median(drain) / 1_000


def run() -> dict[str, float]:
    """Returns the figures: nanoseconds (``_ns``) a fact or transfer, microseconds (``_us``) a request."""
    bench = Bench()
    figures = {**fact_ns(), "transfer_ns": 1_000 * bench.added_us(lambda on, n: _one_transfer(bench, on))[0]}
    for mode in names.TRANSFER_MODES:
        for side, life in (("prefill", bench.prefill), ("decode", bench.decode)):
            engine_us, drain_us = bench.added_us(lambda on, n, life=life, mode=mode: life(mode, on, n))  # type: ignore[misc]
            figures[f"request_us_{mode}_{side}"] = engine_us
            figures[f"drain_us_{mode}_{side}"] = drain_us
    bench.telemetry.shutdown()
    return {**figures, "target_fact_ns": TARGET_FACT_NS, "target_request_us": TARGET_REQUEST_US}


def fact_ns() -> dict[str, float]:
    """One call of :meth:`Ledger.record`: the median over rounds, and the 99th percentile of single timed calls."""
    ledger, clock = Ledger(), time.perf_counter_ns
    each, single = [], []
    for _ in range(ROUNDS):
        start = clock()
        for at_ns in range(FACTS_A_ROUND):
            ledger.record(_ignore, at_ns, 1, 2, "PROC")
        each.append((clock() - start) / FACTS_A_ROUND)
        for at_ns in range(FACTS_A_ROUND // 10):
            start = clock()
            ledger.record(_ignore, at_ns, 1, 2, "PROC")
            single.append(clock() - start)
        ledger.drain()
    return {"fact_ns_p50": statistics.median(each), "fact_ns_p99": statistics.quantiles(single, n=100)[98]}


def _ignore(*data: Any) -> None:
    pass


def _one_transfer(bench: Bench, tapped: bool) -> None:
    bench.transfer(bench.hooks[0][2] if tapped else bench.agent, "WRITE", b"request:1", polls=0)


def _request(number: int, mode: str, **params: Any) -> Any:
    more = {
        names.PARAM_MODE: mode,
        names.PARAM_REQUEST_ID: f"rid-{number}",
        names.PARAM_TRACEPARENT: f"00-{number + 1:032x}-{1:016x}-01",
    }
    return SimpleNamespace(
        request_id=f"cmpl-rid-{number}-0",
        kv_transfer_params={**params, **more},
        trace_headers=None,
        arrival_time=time.time(),
        num_prompt_tokens=128,
        num_output_tokens=0,
        status=SimpleNamespace(name="FINISHED_LENGTH_CAPPED"),
    )


def _wanted(peer_request: str) -> Any:
    remote = SimpleNamespace(engine_id="p", request_id=peer_request)
    return SimpleNamespace(remote=remote, local_block_ids=[[1]])


def _metadata(**filled: Any) -> Any:
    empty = ("push_registrations", "reqs_to_recv", "reqs_to_send", "push_finished_blocks")
    return SimpleNamespace(**{name: filled.get(name, {}) for name in empty})


def _results(**filled: Any) -> Any:
    return SimpleNamespace(
        **{name: filled.get(name, set()) for name in ("finished_sending", "finished_recving", "failed_recving")}
    )


if __name__ == "__main__":
    print(json.dumps({name: round(value, 1) for name, value in run().items()}, indent=2))
