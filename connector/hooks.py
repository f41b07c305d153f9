"""What the connectors' hooks record: facts about requests, made from the objects that vLLM hands to its connectors.

Nothing here imports vLLM. Every public method is guarded: called on an engine thread, it counts its own exceptions and
never raises. Requests, metadata and results are upstream's objects; the names used of them are in
:mod:`connector.contract`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from connector import names
from connector.carrier import Carrier, from_params
from connector.clock import PROCESS_CLOCK, now
from connector.ledger import Ledger
from connector.requests import RequestStory
from connector.reuse_offer import Offer
from connector.worker_story import WorkerStory

METADATA_ATTRIBUTE = "kvpath_carriers"  # on upstream's connector metadata: {request id: Carrier}
_FAILURES = ("FINISHED_ABORTED", "FINISHED_IGNORED", "FINISHED_ERROR")
F = TypeVar("F", bound=Callable[..., None])


def guarded(hook: F) -> F:
    """Makes a telemetry method safe to call from an engine thread: its exceptions are counted, never raised."""

    @functools.wraps(hook)
    def safe(self: Any, *args: Any) -> None:
        try:
            hook(self, *args)
        except Exception:
            self.ledger.error()

    return safe  # type: ignore[return-value]


class SchedulerHooks:
    """What the scheduler's hooks record. Called on the engine core thread only; every method is guarded.

    A step in which nothing happens must cost next to nothing, and a look at an attribute is cheaper than a call: while
    ``unscheduled`` is empty :meth:`scheduled` does nothing and need not be called; so with ``carriers`` and
    :meth:`attach`, with ``before_first_token`` and :meth:`step_ended`, and with both that and ``reading`` and
    :meth:`output`.
    """

    def __init__(self, ledger: Ledger, story: RequestStory, mode: str, instance: str = "") -> None:
        self.ledger = ledger
        self._story = story
        self._mode = mode
        self._instance = instance
        self.carriers: dict[str, Carrier] = {}
        self.resting: dict[str, Carrier] = {}  # mode reuse: read, and not finished yet
        self.before_first_token: dict[str, Any] = {}
        self.unscheduled: set[str] = set()
        self.reading: set[str] = set()  # mode reuse, on P: requests whose blocks a READ of what D kept fills

    @guarded
    def new_request(self, request: Any) -> None:
        at_ns = now()
        params = request.kv_transfer_params
        if not params:
            return
        carrier = from_params(params, request.request_id, self._mode, request.trace_headers)
        if params.get("do_remote_decode"):
            self.carriers[request.request_id] = carrier
            self.unscheduled.add(request.request_id)
            self.ledger.record(
                self._story.prefill_received,
                at_ns,
                request.request_id,
                carrier,
                request.arrival_time,
                request.num_prompt_tokens,
            )
        elif params.get("do_remote_prefill"):
            self.carriers[request.request_id] = carrier
            self.before_first_token[request.request_id] = request
            self.ledger.record(self._story.decode_received, at_ns, request.request_id, carrier)

    @guarded
    def offered(self, request: Any, offer: Offer) -> None:
        """Mode reuse, on P: what became of the blocks that D kept and the router offered."""
        self.ledger.record(self._story.prefill_offered, now(), request.request_id, offer)

    @guarded
    def pinned(self, blocks: int, limit: int) -> None:
        """Mode reuse, on D: as many blocks are kept from now on, of ``limit`` at most.

        Told at once, not by the drain thread: a D that has freed its last blocks takes no further step by itself, and
        this one's statistics are the last to leave it.
        """
        self._story.blocks_pinned(blocks, limit)

    @guarded
    def allocated(self, request: Any, external_tokens: int) -> None:
        carrier = self.carriers.get(request.request_id)
        if carrier is None or carrier.stamp_ns:
            return
        decodes = request.request_id in self.before_first_token
        if not decodes and not external_tokens:
            return  # P computes it all
        at_ns = now()
        self.carriers[request.request_id] = carrier.at(PROCESS_CLOCK.wall(at_ns))
        if not decodes:
            self.reading.add(request.request_id)
        handler = self._story.decode_allocated if decodes else self._story.prefill_reads
        self.ledger.record(handler, at_ns, request.request_id, external_tokens)

    @guarded
    def scheduled(self, scheduler_output: Any) -> None:
        at_ns = now()
        for new in scheduler_output.scheduled_new_reqs:
            if new.req_id in self.unscheduled:
                self.unscheduled.discard(new.req_id)
                self.ledger.record(self._story.prefill_scheduled, at_ns, new.req_id, new.num_computed_tokens)

    @guarded
    def attach(self, metadata: Any) -> None:
        """Puts carriers on the metadata of this step, for the worker, and on registrations, for P's worker."""
        if not (metadata.push_registrations or metadata.reqs_to_recv or metadata.reqs_to_send):
            return
        carried = {}
        for request, registration in metadata.push_registrations.items():
            carrier = self.carriers.get(request)
            if carrier is not None:
                telemetry = {names.PARAM_TRACEPARENT: carrier.traceparent, names.PARAM_INSTANCE: self._instance}
                registration[names.PARAM_TELEMETRY] = telemetry
                carried[request] = carrier
        for request in metadata.reqs_to_recv:
            carrier = self.carriers.pop(request, None)
            if carrier is None:
                continue
            reuse = carrier.mode == names.MODE_REUSE
            if reuse:  # P has still to compute, D may keep the blocks
                self.resting[request] = carrier
            if carrier.stamp_ns or not reuse:  # without one P reads nothing, and only tells D to free its blocks
                carried[request] = carrier
        for request in metadata.reqs_to_send:
            carrier = self.carriers.pop(request, None)
            if carrier is not None:
                carried[request] = carrier
        if carried:
            setattr(metadata, METADATA_ATTRIBUTE, carried)

    @guarded
    def finished(self, request: Any, result: tuple[bool, Any]) -> None:
        at_ns, blocks_kept = now(), result[0]
        error = request.status.name.lower() if request.status.name in _FAILURES else None
        if self.before_first_token.pop(request.request_id, None) is not None:
            handler = self._story.decode_first_token if request.num_output_tokens else self._story.decode_finished
            self.ledger.record(handler, at_ns, request.request_id, *([] if request.num_output_tokens else [error]))
        carrier = self.carriers.pop(request.request_id, None) or self.resting.pop(request.request_id, None)
        if carrier is None:
            return
        if (request.kv_transfer_params or {}).get("do_remote_decode"):
            self.unscheduled.discard(request.request_id)
            self.ledger.record(self._story.prefill_finished, at_ns, request.request_id, carrier, error, blocks_kept)
        if blocks_kept:
            self.carriers[request.request_id] = carrier.at(PROCESS_CLOCK.wall(at_ns))

    @guarded
    def output(self, connector_output: Any) -> None:
        received = connector_output.finished_recving
        if received:
            self.reading.difference_update(received)
            self.ledger.record(self._story.received, now(), frozenset(received))

    @guarded
    def step_ended(self) -> None:
        """Called once a step, after its tokens were appended: looks for requests that got their first."""
        for request in self.before_first_token.values():  # a loop, for it costs less than a list: mostly none has
            if request.num_output_tokens:
                break
        else:
            return
        started = [key for key, request in self.before_first_token.items() if request.num_output_tokens]
        at_ns = now()
        for request_id in started:
            del self.before_first_token[request_id]
            self.ledger.record(self._story.decode_first_token, at_ns, request_id)


class WorkerHooks:
    """What the worker's hooks record. Called on the worker's main thread only; every method is guarded."""

    def __init__(self, ledger: Ledger, story: WorkerStory) -> None:
        self.ledger = ledger
        self._story = story

    def start(self, metadata: Any) -> None:
        carriers = getattr(metadata, METADATA_ATTRIBUTE, None)
        if carriers:
            self._start(metadata, carriers)

    @guarded
    def _start(self, metadata: Any, carriers: dict[str, Carrier]) -> None:
        at_ns = now()
        record = self.ledger.record
        for request, carrier in carriers.items():
            if not carrier.stamp_ns:  # telemetry failed on the scheduler's side; the span will say what it lacks
                self.ledger.losses.unmatched += 1
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

    def transfer_results(self, results: Any) -> None:
        """``results``: vLLM's ``KVConnectorTransferResults`` (since 0.32)."""
        try:  # what the decorator does, without its call: every step comes here
            if results.finished_sending or results.finished_recving or results.failed_recving:
                self._finished(results.finished_sending, results.finished_recving, results.failed_recving)
        except Exception:
            self.ledger.error()

    @guarded
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
