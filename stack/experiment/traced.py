"""One row a request of what its trace says: the stages of its TTFT, the transfer, what P and D held. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from connector import names
from connector.stages import UNEXPLAINED
from stack.analysis.compare import Analysed, analyse, pooled_bounds
from stack.analysis.critical_path import aligned_request
from stack.analysis.request import RequestSpans, Transfer
from stack.analysis.reuse import PromptTokens
from stack.analysis.trace import Trace


@dataclass(frozen=True, slots=True)
class Moved:
    """One request's transfer over all ranks. ``time_ns``: first post to last end; ``poll_gap_ns`` of it is unsure."""

    operation: str
    bytes: int
    descriptors: int
    runs: int
    time_ns: int
    poll_gap_ns: int

    @property
    def gigabytes_per_second(self) -> float:
        return self.bytes / self.time_ns if self.time_ns > 0 else 0.0


@dataclass(frozen=True, slots=True)
class PathRow:
    """Nanoseconds. ``excluded`` says why the path counts for nothing; then ``stages`` may be empty.

    ``held_ns``: P kept the blocks so long after prefill. ``waited_ns``: first to second arrival at the rendezvous.
    ``reserved_ns``: push, D's blocks were allocated so long before P had finished. ``tokens`` of the prompt, where P
    says: read back from D, in P's own prefix cache, computed. ``lookup`` and ``moved_back``, reuse: what was found of
    the turn before, and P's READ of it.
    """

    trace_id: str
    mode: str
    excluded: str
    ttft_ns: int = 0
    stages: Mapping[str, int] = field(default_factory=dict)
    overlapped_ns: int = 0
    last_arrival: str = ""
    held_ns: int | None = None
    waited_ns: int | None = None
    reserved_ns: int | None = None
    moved: Moved | None = None
    incomplete: tuple[str, ...] = ()
    tokens: PromptTokens | None = None
    lookup: str | None = None
    moved_back: Moved | None = None

    def document(self) -> dict[str, Any]:
        return asdict(self) | {"stages": dict(self.stages), "incomplete": list(self.incomplete)}


def path_row_from(document: Mapping[str, Any]) -> PathRow:
    """Reads :meth:`PathRow.document`; what the run folder added to the row is left aside."""
    given = {key: document[key] for key in PathRow.__dataclass_fields__ if key in document}
    kinds = {"moved": Moved, "moved_back": Moved, "tokens": PromptTokens}
    given |= {key: kind(**given[key]) for key, kind in kinds.items() if given.get(key)}
    return PathRow(**given | {"incomplete": tuple(given["incomplete"])})


def path_rows(traces: Sequence[Trace]) -> list[PathRow]:
    """Analyses the traces of one block together, so that the clocks of its hosts are estimated from all of them."""
    pooled = pooled_bounds(traces)
    return [_row(aligned_request(trace, pooled)[0], analyse(trace, pooled)) for trace in traces]


def _row(request: RequestSpans, item: Analysed) -> PathRow:
    path = item.path
    if path is None or item.excluded:
        reason = item.excluded or "no critical path"
        return PathRow(item.trace_id, item.mode, reason, incomplete=tuple(map(str, item.defects)))
    compute, held = request.compute, request.blocks_held
    push = path.mode == names.MODE_PUSH
    reserved = None
    if push and compute is not None and request.registers:
        reserved = max(0, compute.end_ns - min(s.start_ns for s in request.registers))
    return PathRow(
        trace_id=item.trace_id,
        mode=item.mode,
        excluded="",
        ttft_ns=path.ttft_ns,
        stages={**path.stages, UNEXPLAINED: path.unexplained_ns},
        overlapped_ns=path.overlapped_total_ns,
        last_arrival=path.last_arrival or "",
        held_ns=held.duration_ns if held else None,
        waited_ns=max((s.duration_ns for s in request.rendezvous), default=None),
        reserved_ns=reserved,
        moved=_moved(request.transfers, request.mode),
        incomplete=tuple(map(str, item.defects)),
        tokens=path.tokens,
        lookup=path.lookup,
        moved_back=_moved(request.reuse_transfers, request.mode),
    )


def _moved(transfers: Sequence[Transfer], mode: str) -> Moved | None:
    whole = [t for t in transfers if t.submit and t.flight]
    if not whole:
        return None
    spans = [t.span for t in whole]

    def total(key: str) -> int:
        values = (span.attributes.get(key) for span in spans)
        return sum(value for value in values if isinstance(value, int))

    flights = [t.flight for t in whole if t.flight]
    gaps = (flight.attributes.get(names.ATTR_POLL_GAP) for flight in flights)
    return Moved(
        operation=str(spans[0].attributes.get(names.ATTR_OPERATION) or _operation(mode)),
        bytes=total(names.ATTR_BYTES),
        descriptors=total(names.ATTR_DESCRIPTORS),
        runs=total(names.ATTR_RUNS),
        time_ns=max(f.end_ns for f in flights) - min(t.submit.start_ns for t in whole if t.submit),
        poll_gap_ns=max((gap for gap in gaps if isinstance(gap, int)), default=0),
    )


def _operation(mode: str) -> str:
    return names.OPERATION_WRITE if mode == names.MODE_PUSH else names.OPERATION_READ
