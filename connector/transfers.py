"""One NIXL transfer, from preparation to its end: ``kvpath.write`` or ``kvpath.read`` with its three parts.

Runs on the drain thread; times are monotonic nanoseconds. The end of a transfer is *seen* by a poll: the true end
lies between the last poll that found it in progress and the one that found it done. That gap is on the span.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opentelemetry.trace import SpanContext

from connector import metrics, names
from connector.carrier import Carrier
from connector.engine_context import EngineContext
from connector.waiting import Waiting

MEASURE_WITHIN_NS = 1_000_000_000


@dataclass(slots=True)
class Subject:
    """Why a transfer happens: whose it is, when it could have started, and what its span links to.

    ``start_ns`` is the start of the span (WRITE: rendezvous met; READ: blocks allocated on the reader); ``ready_ns``
    is when preparation could start, which is later when a handshake came between.
    """

    carrier: Carrier
    span_name: str
    start_ns: int
    ready_ns: int
    links: tuple[SpanContext, ...]
    span_id: int | None
    attributes: dict[str, Any]
    lost: tuple[str, ...] = ()


@dataclass(slots=True)
class Transfer:
    subject: Subject
    operation: str
    prepared_ns: int
    local_ids: Any
    remote_ids: Any
    posted_ns: int = 0
    ended_ns: int = 0
    poll_gap_ns: int = 0
    total_bytes: int = 0

    @property
    def last_known_ns(self) -> int:
        return max(self.prepared_ns, self.posted_ns, self.ended_ns)


class TransferBook:
    """Transfers in flight, by handle."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._open: Waiting[int, Transfer] = Waiting(context.losses, self._never_ended)
        self._unmeasured: dict[int, int] = {}  # handle -> when it was seen to have ended

    def prepared(
        self, at_ns: int, handle: int, end_ns: int, operation: str, ids: tuple[Any, Any], why: Subject
    ) -> None:
        self._open.put(handle, at_ns, Transfer(why, operation, end_ns, *ids))

    def posted(self, at_ns: int, handle: int, end_ns: int, state: str) -> None:
        transfer = self._find(handle)
        if transfer is not None:
            transfer.posted_ns = end_ns
            if state == "DONE":
                transfer.ended_ns = end_ns

    def ended(self, at_ns: int, handle: int, state: str, last_in_progress_ns: int) -> Subject | None:
        """Returns the subject of a transfer that has succeeded, ``None`` otherwise."""
        transfer = self._find(handle)
        if transfer is None:
            return None
        if state != "DONE":
            self._close(handle, at_ns, "nixl_transfer_error")
            return None
        if not transfer.ended_ns:
            transfer.ended_ns = at_ns
            transfer.poll_gap_ns = at_ns - max(last_in_progress_ns, transfer.posted_ns)
        self._unmeasured[handle] = at_ns
        return transfer.subject

    def measured(self, handle: int, total_bytes: int) -> None:
        transfer = self._find(handle)
        if transfer is None:
            return
        transfer.total_bytes = total_bytes
        if self._unmeasured.pop(handle, None) is not None:
            self._close(handle, transfer.ended_ns, None)

    def failed(self, at_ns: int, handle: int, error: str) -> None:
        self._unmeasured.pop(handle, None)
        if self._open.get(handle) is not None:
            self._close(handle, at_ns, error)

    def idle(self, at_ns: int) -> None:
        """Closes what ended and was never measured, and evicts what never ended."""
        for handle, ended_ns in list(self._unmeasured.items()):
            if at_ns - ended_ns < MEASURE_WITHIN_NS:
                break  # the engine thread may be between the poll and the measurement
            del self._unmeasured[handle]
            transfer = self._open.get(handle)
            if transfer is not None:
                self._close(handle, transfer.ended_ns, None, (names.LOST_SIZE,))
        self._open.expire(at_ns)

    def _find(self, handle: int) -> Transfer | None:
        transfer = self._open.get(handle)
        if transfer is None:
            self._context.losses.unmatched += 1
        return transfer

    def _close(self, handle: int, end_ns: int, error: str | None, lost: tuple[str, ...] = ()) -> None:
        transfer = self._open.pop(handle)
        assert transfer is not None
        runs = contiguous_runs(transfer.local_ids, transfer.remote_ids)
        self._count(transfer, end_ns, runs, error)
        if error is None and not transfer.posted_ns:
            lost = (*lost, names.LOST_POST)
        self._write_spans(transfer, end_ns, runs, error, lost)

    def _never_ended(self, transfer: Transfer) -> None:
        runs = contiguous_runs(transfer.local_ids, transfer.remote_ids)
        lost = (names.LOST_END,) if transfer.total_bytes else (names.LOST_END, names.LOST_SIZE)
        self._write_spans(transfer, transfer.last_known_ns, runs, None, lost)

    def _count(self, transfer: Transfer, end_ns: int, runs: int, error: str | None) -> None:
        carrier, samples = transfer.subject.carrier, self._context.samples
        samples.add(metrics.TRANSFERS, 1, carrier.mode, transfer.operation, error or "done")
        if error is not None:
            return
        labels = (carrier.mode, transfer.operation)
        samples.add(metrics.TRANSFERRED_BYTES, transfer.total_bytes, *labels)
        samples.add(metrics.DESCRIPTORS, len(transfer.local_ids), *labels)
        samples.add(metrics.RUNS, runs, *labels)
        samples.add(metrics.TRANSFER_SECONDS, (end_ns - transfer.prepared_ns) / 1e9, *labels)
        self._context.transfer_stage(carrier, "prepare", transfer.prepared_ns - transfer.subject.ready_ns)
        if transfer.posted_ns:
            self._context.transfer_stage(carrier, "submit", transfer.posted_ns - transfer.prepared_ns)
            self._context.transfer_stage(carrier, "flight", end_ns - transfer.posted_ns)

    def _write_spans(
        self, transfer: Transfer, end_ns: int, runs: int, error: str | None, lost: tuple[str, ...]
    ) -> None:
        subject = transfer.subject
        attributes = {
            **subject.attributes,
            names.ATTR_OPERATION: transfer.operation,
            names.ATTR_DESCRIPTORS: len(transfer.local_ids),
            names.ATTR_RUNS: runs,
        }
        if names.LOST_SIZE not in lost:
            attributes[names.ATTR_BYTES] = transfer.total_bytes
        if error is None and not lost and end_ns > transfer.prepared_ns:
            attributes[names.ATTR_RATE] = transfer.total_bytes / (end_ns - transfer.prepared_ns)
        parent = self._context.span(
            subject.span_name,
            subject.carrier,
            subject.start_ns,
            end_ns,
            attributes,
            span_id=subject.span_id,
            links=subject.links,
            error=error,
            lost=(*subject.lost, *lost),
        )
        if parent is not None:
            self._write_parts(transfer, parent, None if names.LOST_END in lost else end_ns)

    def _write_parts(self, transfer: Transfer, parent: SpanContext, end_ns: int | None) -> None:
        """``end_ns`` is ``None`` when it is not known."""
        subject = transfer.subject
        rank = {key: subject.attributes[key] for key in (names.ATTR_RANK,) if key in subject.attributes}
        parts = [(names.SUFFIX_PREPARE, subject.ready_ns, transfer.prepared_ns, rank)]
        if transfer.posted_ns:
            # From the end of preparation, not from the post call: what comes between holds the transfer up as well.
            parts.append((names.SUFFIX_SUBMIT, transfer.prepared_ns, transfer.posted_ns, rank))
        if transfer.posted_ns and end_ns is not None:
            gap = {**rank, names.ATTR_POLL_GAP: transfer.poll_gap_ns}
            parts.append((names.SUFFIX_FLIGHT, transfer.posted_ns, end_ns, gap))
        for suffix, start_ns, part_end_ns, extra in parts:
            self._context.span(subject.span_name + suffix, subject.carrier, start_ns, part_end_ns, extra, parent=parent)


def contiguous_runs(local_ids: Any, remote_ids: Any) -> int:
    """Counts runs of descriptors that follow one another on both sides: what a transport could merge.

    ``local_ids`` and ``remote_ids`` are equally long sequences of descriptor indices (list or numpy array).
    """
    import numpy as np  # comes with vLLM; the router and the store never reach this line

    if len(local_ids) == 0:
        return 0
    local, remote = np.asarray(local_ids), np.asarray(remote_ids)
    breaks = (np.diff(local) != 1) | (np.diff(remote) != 1)
    return 1 + int(np.count_nonzero(breaks))
