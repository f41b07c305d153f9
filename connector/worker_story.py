"""A worker's side of a request: puts NIXL facts (from the tap) and connector facts (from the hooks) together.

One story per traced connector, so that push and pull, which have an agent each, never mix. Runs on the drain
thread; ``at_ns`` is monotonic nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from connector import metrics, names
from connector.carrier import compute_span_id, write_span_id
from connector.contract import REGISTRATION_PREFIX
from connector.engine_context import EngineContext
from connector.offers import Offers
from connector.receipts import Receipts
from connector.spans import sibling
from connector.tap import HEARTBEAT_PREFIX
from connector.transfers import Subject, TransferBook


class WorkerStory:
    """Implements :class:`connector.tap.TapStory` for one connector of one worker.

    ``agent`` is the worker's own NIXL agent name; ``rank_of`` maps a remote agent's name to its rank, -1 if unknown.
    """

    def __init__(
        self,
        context: EngineContext,
        *,
        rank: int = 0,
        world_size: int = 1,
        agent: str = "",
        rank_of: Callable[[str], int] = lambda agent: -1,
    ) -> None:
        self._context = context
        self._rank = rank
        self._agent = agent
        self._rank_of = rank_of
        self._connected: dict[str, int] = {}  # agent -> when the connection to it was last extended
        self._lists: dict[int, str] = {}  # prepared remote list -> agent
        self.offers = Offers(context, rank)
        self.receipts = Receipts(context, rank, world_size, agent, rank_of)
        self._transfers = TransferBook(context)

    # --- facts of the tap -------------------------------------------------------------------------------------
    def agent_added(self, at_ns: int, end_ns: int, agent: str | bytes) -> None:
        self._connected[agent_name(agent)] = end_ns

    def list_prepared(self, at_ns: int, end_ns: int, agent: str | bytes, remote_list: int) -> None:
        agent = agent_name(agent)
        self._lists[remote_list] = agent
        if agent in self._connected:
            self._connected[agent] = end_ns

    def prepared(
        self,
        at_ns: int,
        handle: int,
        end_ns: int,
        operation: str,
        local_ids: Any,
        remote_ids: Any,
        remote_list: int,
        message: bytes,
    ) -> None:
        peer_agent = self._lists.get(remote_list, "")
        subject = self._subject(operation, _request_of(message), peer_agent)
        if subject is None:
            self._context.losses.unmatched += 1
            return
        if operation == names.OPERATION_WRITE:
            self.offers.writing(subject.attributes[names.ATTR_PREFILL_REQUEST])
        self._transfers.prepared(at_ns, handle, end_ns, operation, (local_ids, remote_ids), subject)

    def posted(self, at_ns: int, handle: int, end_ns: int, state: str) -> None:
        self._transfers.posted(at_ns, handle, end_ns, state)

    def ended(self, at_ns: int, handle: int, state: str, last_in_progress_ns: int) -> None:
        subject = self._transfers.ended(at_ns, handle, state, last_in_progress_ns)
        if subject is not None and subject.span_name == names.SPAN_WRITE:
            self.offers.written(subject.attributes[names.ATTR_PREFILL_REQUEST])

    def measured(self, at_ns: int, handle: int, total_bytes: int) -> None:
        self._transfers.measured(handle, total_bytes)

    def failed(self, at_ns: int, call: str, handle: int | None, message: bytes | None, error: str) -> None:
        if handle is not None:
            self._transfers.failed(at_ns, handle, error)
        elif call == "make_prepped_xfer" and message is not None:
            self._preparation_failed(at_ns, _request_of(message), error)
        elif message is not None and message.startswith(REGISTRATION_PREFIX):
            self.receipts.send_failed(at_ns, _registration(message)["request_id"], error)

    def sent(self, at_ns: int, end_ns: int, agent: str | bytes, message: bytes) -> None:
        if message.startswith(REGISTRATION_PREFIX):
            request = _registration(message)["request_id"]
            self.receipts.sent(end_ns, request, self._connected.get(agent_name(agent), 0))

    def received(self, at_ns: int, notifs: dict[str | bytes, list[bytes]]) -> None:
        for agent, messages in notifs.items():
            for message in messages:
                try:
                    self._notified(at_ns, agent_name(agent), message)
                except Exception:  # one message that is not understood must not hide the others
                    self._context.losses.errors += 1

    def _notified(self, at_ns: int, agent: str, message: bytes) -> None:
        if message.startswith(REGISTRATION_PREFIX):
            self.offers.registered(at_ns, agent, _registration(message))
        elif not message.startswith(HEARTBEAT_PREFIX):
            self._completion(at_ns, agent, message)

    def _completion(self, at_ns: int, agent: str, message: bytes) -> None:
        request, _, count = message.decode().rpartition(":")
        if self.receipts.awaits(request):
            self.receipts.completed(at_ns, agent, request, int(count))
        else:
            self.offers.read(at_ns, request, int(count))

    def idle(self, at_ns: int) -> None:
        self._transfers.idle(at_ns)
        self.receipts.idle(at_ns)
        self.offers.idle(at_ns)

    # --- what a transfer is for -------------------------------------------------------------------------------
    def _subject(self, operation: str, request: str, peer_agent: str) -> Subject | None:
        if operation == names.OPERATION_WRITE:
            return self._write_subject(request, peer_agent)
        return self._read_subject(request, peer_agent)

    def _write_subject(self, decode_request: str, peer_agent: str) -> Subject | None:
        meeting = self.offers.meeting(decode_request, peer_agent)
        if meeting is None:
            return None
        carrier, registration = meeting.finished.carrier, meeting.registration
        peer_agent = peer_agent or registration.agent
        leg, link = carrier.parent(), registration.span()
        return Subject(
            carrier=carrier,
            span_name=names.SPAN_WRITE,
            start_ns=meeting.met_ns,
            ready_ns=self._ready(carrier, meeting.met_ns, peer_agent, registration.engine),
            links=(link,) if link else (),
            span_id=leg and write_span_id(leg.trace_id, decode_request, self._agent, peer_agent),
            attributes={
                **self._ends(registration.engine, peer_agent),
                names.ATTR_PREFILL_REQUEST: meeting.finished.request,
            },
            lost=() if registration.known else (names.LOST_START,),
        )

    def _read_subject(self, peer_request: str, peer_agent: str) -> Subject | None:
        wanted = self.receipts.read(peer_request)
        if wanted is None:
            return None
        wanted.started = True
        carrier, leg = wanted.carrier, wanted.carrier.parent()
        allocated_ns = self._context.stamp_ns(carrier, wanted.wanted_ns)
        handshake_end_ns = self._ready(carrier, wanted.wanted_ns, peer_agent, wanted.peer_name)
        takes_back = self._context.takes_back(carrier)  # then the KV was made in an earlier turn's trace
        link = leg and sibling(leg, compute_span_id(leg.trace_id, wanted.peer_engine, peer_request))
        return Subject(
            carrier=carrier,
            span_name=names.SPAN_READ,
            start_ns=allocated_ns,
            ready_ns=handshake_end_ns if handshake_end_ns > wanted.wanted_ns else allocated_ns,
            links=(link,) if link and not takes_back else (),
            span_id=None,
            attributes={
                **self._ends(wanted.peer_name, peer_agent),
                names.ATTR_PREFILL_REQUEST: wanted.request if takes_back else peer_request,
            },
            lost=self._context.lost_stamp(carrier),
        )

    def _ready(self, carrier: Any, since_ns: int, peer_agent: str, peer_engine: str) -> int:
        """When the transfer could start: ``since_ns``, or the end of a handshake that it had to wait for."""
        connected_ns = self._connected.get(peer_agent, 0)
        if connected_ns <= since_ns:
            return since_ns
        self.receipts.handshake_span(carrier, since_ns, connected_ns, peer_engine)
        return connected_ns

    def _ends(self, peer_engine: str, peer_agent: str) -> dict[str, Any]:
        ends: dict[str, Any] = {names.ATTR_RANK: self._rank, names.ATTR_PEER_ENGINE_ID: peer_engine}
        peer_rank = self._rank_of(peer_agent)
        if peer_rank >= 0:
            ends[names.ATTR_PEER_RANK] = peer_rank
        return ends

    def _preparation_failed(self, at_ns: int, request: str, error: str) -> None:
        for operation in (names.OPERATION_WRITE, names.OPERATION_READ):
            subject = self._subject(operation, request, "")
            if subject is None:
                continue
            if operation == names.OPERATION_WRITE:
                self.offers.writing(subject.attributes[names.ATTR_PREFILL_REQUEST])
            self._context.span(
                subject.span_name,
                subject.carrier,
                subject.start_ns,
                at_ns,
                subject.attributes,
                span_id=subject.span_id,
                links=subject.links,
                error=error,
                lost=subject.lost,
            )
            self._context.samples.add(metrics.TRANSFERS, 1, subject.carrier.mode, operation, error)


def agent_name(agent: str | bytes) -> str:
    """One spelling of a NIXL agent: ``add_remote_agent`` returns bytes, notifications come under text."""
    return agent.decode() if isinstance(agent, bytes) else agent


def _request_of(message: bytes) -> str:
    return message.decode().rpartition(":")[0]


def _registration(message: bytes) -> dict[str, Any]:
    return msgspec.msgpack.decode(message[len(REGISTRATION_PREFIX) :])
