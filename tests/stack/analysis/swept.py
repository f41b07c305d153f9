"""The second algorithm for the critical path, which must agree with the first."""

from __future__ import annotations

from itertools import pairwise

from connector import names
from connector.stages import STAGE_NAMES, UNEXPLAINED
from stack.analysis.request import request_spans
from stack.analysis.trace import Trace


def swept(trace: Trace) -> dict[str, int]:
    """Cuts TTFT at every instant of the trace and asks of each sliver what was waited for.

    It knows no chain of segments: each sliver is labelled by itself, from the state of the request at that time.
    """
    r = request_spans(trace)
    assert r.root
    assert r.leg_prefill
    assert r.compute
    assert r.queue
    assert r.first_step
    first_token = r.first_token_ns
    assert first_token is not None
    if r.mode == "push":
        completions = [(e.time_ns, e.attributes[names.ATTR_PRODUCER_RANK]) for a in r.awaits for e in a.events]
        counted, rank = max(completions)
        transfer = next(t for t in r.transfers if t.rank == rank)
        met = next(s for s in r.rendezvous if s.attributes[names.ATTR_RANK] == rank)
        late = met.attributes[names.ATTR_LAST_ARRIVAL] == "registration"
        ready = met.end_ns if late else r.compute.end_ns
        connecting = [s for s in r.prefill_handshakes if s.attributes[names.ATTR_RANK] == rank]
    else:
        transfer = max(r.transfers, key=lambda t: t.flight.end_ns)
        counted, ready = transfer.flight.end_ns, transfer.span.start_ns
        connecting = [s for s in r.decode_handshakes if s.attributes[names.ATTR_RANK] == transfer.rank]
    back = max(r.reuse_transfers, key=lambda t: t.flight.end_ns, default=None)
    landed = min(transfer.flight.end_ns, counted)

    def label_back(at: int, back) -> str:
        if at < back.prepare.end_ns:
            own = [s for s in r.prefill_handshakes if s.attributes[names.ATTR_RANK] == back.rank]
            return "reuse_handshake" if any(s.start_ns <= at < s.end_ns for s in own) else "reuse_prepare"
        if at < back.submit.end_ns:
            return "reuse_submit"
        return "reuse_flight" if at < back.flight.end_ns else "reuse_notify"

    def label(at: int) -> str:
        if at < r.leg_prefill.start_ns:
            return "route"
        if at < r.compute.end_ns:
            inside = {"prefill_queue": r.queue, "prefill": r.compute}
            if back is not None and back.span.start_ns <= at < r.compute.start_ns:
                return label_back(at, back)
            return next((s for s, span in inside.items() if span.start_ns <= at < span.end_ns), UNEXPLAINED)
        if at < ready:
            return "handoff"
        if at < transfer.prepare.end_ns:
            return "handshake" if any(s.start_ns <= at < s.end_ns for s in connecting) else "prepare"
        if at >= r.first_step.end_ns:
            return "deliver"
        if at >= r.first_step.start_ns:
            return "first_step"
        if at >= landed:
            return "notify"
        if transfer.submit.start_ns <= at < transfer.submit.end_ns:
            return "submit"
        return "flight" if at >= transfer.flight.start_ns else UNEXPLAINED

    instants = {t for s in trace.spans for t in (s.start_ns, s.end_ns, *(e.time_ns for e in s.events))}
    cuts = sorted(t for t in instants if r.root.start_ns <= t <= first_token)
    totals = dict.fromkeys((*STAGE_NAMES, UNEXPLAINED), 0)
    for start, end in pairwise(cuts):
        totals[label(start)] += end - start
    return totals
