"""A prefill and a decode engine whose workers share a fabric, and what is read from the spans they write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from opentelemetry.trace import StatusCode

from connector import names
from connector.clock import now
from connector.contract import REGISTRATION_PREFIX
from connector.fake_agent import Network, TransferHandle
from tests.connector.conftest import DECODE_LEG, PREFILL_LEG, Engine, Worker, carrier_of

P_REQUEST, D_REQUEST = "cmpl-rid-1-0-aaaaaaaa", "cmpl-rid-1-0-bbbbbbbb"
LOCAL, REMOTE = [4, 5, 6, 9], [10, 11, 12, 13]
HOUR_NS = 3_600_000_000_000
NOTHING_LOST = [0] * 8


class Pair:
    """A prefill and a decode engine, with one worker each unless a test adds some."""

    def __init__(self, new_engine: Callable[..., Engine]) -> None:
        self.network = Network()
        self.p = new_engine("prefill-0", names.SERVICE_PREFILL)
        self.d = new_engine("decode-0", names.SERVICE_DECODE)
        self.pw = self.p.worker("agent-p", self.network)
        self.dw = self.d.worker("agent-d", self.network)
        self.lists: dict[tuple[Worker, Worker], Any] = {}

    def connect(self, source: Worker, target: Worker) -> None:
        self.lists[source, target] = source.connect(target)

    # --- what the hooks record --------------------------------------------------------------------------------
    def stage(self, request: str = D_REQUEST, leg: int = DECODE_LEG, workers: list[Worker] | None = None) -> int:
        """D's worker is told of a registration; returns when D's scheduler allocated."""
        allocated_ns = now()
        carrier = carrier_of(leg, stamp_ns=self.d.at(allocated_ns))
        for worker in workers or [self.dw]:
            self.d.ledger.record(worker.story.receipts.staged, now(), request, carrier, "prefill-0", 1)
        return allocated_ns

    def register(
        self, request: str = D_REQUEST, leg: int = DECODE_LEG, dw: Worker | None = None, pw: Worker | None = None
    ) -> None:
        """D's worker sends the registration that D's scheduler made."""
        data = {
            "request_id": request,
            "decode_engine_id": "decode-0",
            names.PARAM_TELEMETRY: {names.PARAM_TRACEPARENT: carrier_of(leg).traceparent},
        }
        target = (pw or self.pw).agent.name
        (dw or self.dw).tap.send_notif(target, notif_msg=REGISTRATION_PREFIX + msgspec.msgpack.encode(data))

    def finish_prefill(self, request: str = P_REQUEST, leg: int = PREFILL_LEG, pw: Worker | None = None) -> int:
        """P's worker is told that a prefill has finished and its blocks are held; returns when it finished."""
        finished_ns = now()
        story = (pw or self.pw).story
        carrier = carrier_of(leg, stamp_ns=self.p.at(finished_ns))
        self.p.ledger.record(story.offers.held, now(), request, carrier)
        self.p.ledger.record(story.offers.finished, now(), request, carrier)
        return finished_ns

    def write(
        self, request: str = D_REQUEST, pw: Worker | None = None, dw: Worker | None = None, world: int = 1
    ) -> TransferHandle:
        """P's writer prepares and posts a WRITE."""
        pw, dw = pw or self.pw, dw or self.dw
        handle = pw.tap.make_prepped_xfer(
            "WRITE", "local", LOCAL, self.lists[pw, dw], REMOTE, notif_msg=f"{request}:{world}".encode()
        )
        pw.tap.transfer(handle)
        return handle

    def poll(self, worker: Worker, handle: TransferHandle) -> str:
        """What upstream's ``_pop_done_transfers`` does with one handle."""
        state = worker.tap.check_xfer_state(handle)
        if state == "DONE":
            worker.tap.get_xfer_telemetry(handle)
            worker.tap.release_xfer_handle(handle)
        return state

    def sent(self, *requests: str, pw: Worker | None = None) -> None:
        self.p.ledger.record((pw or self.pw).story.offers.released, now(), frozenset(requests))

    def received(self, *requests: str, error: str | None = None) -> None:
        self.d.ledger.record(self.dw.story.receipts.finished, now(), frozenset(requests), error)

    def push(self, request: str = D_REQUEST) -> TransferHandle:
        """The rest of a push once both sides have arrived: WRITE, completion, release."""
        handle = self.write(request)
        self.poll(self.pw, handle)
        self.pw.agent.complete(handle)
        self.poll(self.pw, handle)
        self.dw.tap.get_new_notifs()
        return handle

    @property
    def losses(self) -> list[int]:
        self.p.ledger.drain()
        self.d.ledger.drain()
        return [
            value
            for engine in (self.p, self.d)
            for value in (
                engine.ledger.losses.errors,
                engine.ledger.losses.dropped,
                engine.ledger.losses.evicted,
                engine.ledger.losses.unmatched,
            )
        ]


def attributes(span: Any) -> dict[str, Any]:
    return dict(span.attributes)


def link_ids(span: Any) -> list[int]:
    return [link.context.span_id for link in span.links]


def errors(span: Any) -> str | None:
    failed = span.status.status_code is StatusCode.ERROR
    assert failed == (names.ATTR_ERROR_TYPE in span.attributes)
    return span.attributes.get(names.ATTR_ERROR_TYPE)


def two_decode_workers(pair: Pair) -> list[Worker]:
    """D's worker and a second one of rank 1, both connected with P's."""
    targets = [pair.dw, pair.d.worker("agent-d1", pair.network, rank=1, world_size=2)]
    for target in targets:
        pair.connect(target, pair.pw)
        pair.connect(pair.pw, target)
    return targets


def ready_to_write(pair: Pair) -> None:
    pair.stage()
    pair.register()
    pair.finish_prefill()
    pair.pw.tap.get_new_notifs()
