"""Chooses, mode by mode, which pieces of which spans make up the critical path of one request.

Pure; times are aligned. A plan is a list of pieces in path order; it neither sums nor fills gaps, which is
:mod:`stack.analysis.critical_path`'s part.

- The path waits for the *last* arrival: in push, the later of "prefill finished" and "registration matched".
- With several ranks it goes through the transfer whose completion was counted last.
- A transfer may start when P has finished and its peer is known; from that instant on the time belongs to
  ``handshake`` while a connection is being made and to ``prepare`` otherwise.
- A WRITE ended no later than D counted its completion, even when P saw it end later.
- In reuse P may first READ what D kept of the turn before: the same phases, between P's queue and its prefill.
"""

from __future__ import annotations

from collections.abc import Sequence

from connector import names
from stack.analysis.path_draft import Draft, Plan
from stack.analysis.request import SPAN_LLM_REQUEST, RequestSpans, Transfer
from stack.analysis.trace import Span

# vLLM's attributes on its own span (vllm/tracing/utils.py), seconds as floats.
LLM_TIME_IN_QUEUE = "gen_ai.latency.time_in_queue"
LLM_TIME_IN_PREFILL = "gen_ai.latency.time_in_model_prefill"
LLM_TIME_TO_FIRST_TOKEN = "gen_ai.latency.time_to_first_token"


def plan_path(request: RequestSpans, start_ns: int, first_token_ns: int) -> Plan:
    """Plans the path of ``request`` from ``start_ns`` (request in) to ``first_token_ns`` (first token out)."""
    draft = Draft()
    if request.mode == names.MODE_PLAIN:
        _plan_plain(draft, request, start_ns, first_token_ns)
        return draft.done()
    if request.mode == names.MODE_PUSH and request.nothing_transferred:
        _plan_cached(draft, request, start_ns, first_token_ns)
        return draft.done()
    leg = draft.need(request.leg_prefill, names.SPAN_LEG_PREFILL)
    draft.add("route", start_ns, leg.start_ns if leg else None)
    draft.whole("prefill_queue", request.queue, names.SPAN_PREFILL_QUEUE)
    _plan_reuse(draft, request)
    draft.whole("prefill", request.compute, names.SPAN_PREFILL_COMPUTE)
    if request.nothing_transferred:
        _plan_first_step(draft, request, None, first_token_ns)
        return draft.done()
    transfer = _last_transfer(request)
    if request.mode == names.MODE_PUSH:
        draft.need(transfer.span if transfer else None, names.SPAN_WRITE)
        ready = _push_handoff(draft, request, transfer)
        handshakes = request.prefill_handshakes
    else:
        draft.need(transfer.span if transfer else None, names.SPAN_READ)
        ready = _pull_handoff(draft, request, transfer)
        handshakes = request.decode_handshakes
    ended = None
    if transfer is not None:
        _plan_preparation(draft, transfer, handshakes, ready)
        ended = _plan_transfer(draft, request, transfer)
    _plan_first_step(draft, request, ended, first_token_ns)
    return draft.done()


def _plan_reuse(draft: Draft, request: RequestSpans) -> None:
    """P's READ of what D kept: nothing when there was none. One that failed cost time, and P then computed it all."""
    if not request.reuse_transfers:
        return
    prefix = names.REUSE_STAGE_PREFIX
    transfer = max(request.reuse_transfers, key=_transfer_end)
    if not request.reuse_failed:
        _plan_preparation(draft, transfer, request.prefill_handshakes, transfer.span.start_ns, prefix=prefix)
        ended = _plan_transfer(draft, request, transfer, prefix=prefix)
    else:
        phases = {"prepare": transfer.prepare, "submit": transfer.submit, "flight": transfer.flight}
        connecting = [("handshake", span) for span in request.prefill_handshakes]
        for stage, span in (*connecting, *phases.items()):
            if span is not None:
                draft.add(prefix + stage, span.start_ns, span.end_ns, span)
        ended = _transfer_end(transfer)
        draft.notes.append("P's READ of what D kept failed: P computed the prompt itself")
    draft.add(prefix + "notify", ended, request.compute.start_ns if request.compute else None)


def _push_handoff(draft: Draft, request: RequestSpans, transfer: Transfer | None) -> int | None:
    """Adds ``handoff`` when the registration came last; returns when the WRITE could start."""
    finished = request.compute.end_ns if request.compute else None
    met = draft.need(_same_rank(request.rendezvous, transfer), names.SPAN_RENDEZVOUS)
    if met is None:
        return finished
    last = met.attributes.get(names.ATTR_LAST_ARRIVAL)
    draft.last_arrival = last if isinstance(last, str) else None
    if draft.last_arrival != names.LAST_ARRIVAL_REGISTRATION:
        return finished
    draft.add("handoff", finished, met.end_ns, met)
    if finished is not None:
        late = [s for s in request.decode_handshakes if s.end_ns > finished]
        if late:
            waited = max(s.end_ns for s in late) - max(finished, min(s.start_ns for s in late))
            draft.notes.append(f"handoff includes {waited} ns in which the registration waited for D's handshake")
    return met.end_ns


def _pull_handoff(draft: Draft, request: RequestSpans, transfer: Transfer | None) -> int | None:
    """Adds ``handoff``; returns when the READ could start: D has allocated blocks for it."""
    if transfer is None:
        return None
    allocated = transfer.span.start_ns
    draft.add("handoff", request.compute.end_ns if request.compute else None, allocated)
    return allocated


def _same_rank(spans: Sequence[Span], transfer: Transfer | None) -> Span | None:
    """The span of the transfer's rank; without one, the last to end, because the path waits for it."""
    same = [s for s in spans if transfer is not None and s.attributes.get(names.ATTR_RANK) == transfer.rank]
    return max(same or spans, key=lambda s: s.end_ns, default=None)


def _last_transfer(request: RequestSpans) -> Transfer | None:
    """The transfer whose completion D counted last; without completions, the one that ended last."""
    last = _last_completion(request)
    if last is not None:
        rank, _ = last
        same = [t for t in request.transfers if t.rank == rank]
        if same:
            return max(same, key=_transfer_end)
    return max(request.transfers, key=_transfer_end, default=None)


def _transfer_end(transfer: Transfer) -> int:
    return transfer.flight.end_ns if transfer.flight else transfer.span.end_ns


def _last_completion(request: RequestSpans) -> tuple[object, int] | None:
    """(producer rank, time) of the completion that was counted last."""
    counted = [
        (event.time_ns, event.attributes.get(names.ATTR_PRODUCER_RANK))
        for span in request.awaits
        for event in span.events
        if event.name == names.EVENT_COMPLETION
    ]
    if not counted:
        return None
    time_ns, rank = max(counted, key=lambda found: found[0])
    return rank, time_ns


def _plan_preparation(
    draft: Draft, transfer: Transfer, handshakes: Sequence[Span], ready_ns: int | None, *, prefix: str = ""
) -> None:
    """Splits the time from "may start" to "descriptors handed to NIXL" into ``handshake`` and ``prepare``."""
    prepare = draft.need(transfer.prepare, transfer.span.name + names.SUFFIX_PREPARE)
    if prepare is None:
        return
    reached = prepare.start_ns if ready_ns is None else ready_ns
    end = prepare.end_ns
    own = [s for s in handshakes if s.attributes.get(names.ATTR_RANK) in (None, transfer.rank)]
    for span in sorted(own, key=lambda s: s.start_ns):
        start, stop = max(span.start_ns, reached), min(span.end_ns, end)
        if start < stop:
            if start > reached:
                draft.add(f"{prefix}prepare", reached, start, prepare)
            draft.add(f"{prefix}handshake", start, stop, span)
            reached = stop
    draft.add(f"{prefix}prepare", reached, end, prepare)


def _plan_transfer(draft: Draft, request: RequestSpans, transfer: Transfer, *, prefix: str = "") -> int | None:
    """Adds ``submit`` and ``flight``; returns when the transfer ended, as well as it is known."""
    submit = draft.need(transfer.submit, transfer.span.name + names.SUFFIX_SUBMIT)
    flight = draft.need(transfer.flight, transfer.span.name + names.SUFFIX_FLIGHT)
    if flight is None:
        if submit is not None:
            draft.add(f"{prefix}submit", submit.start_ns, submit.end_ns, submit)
        return None
    last = _last_completion(request)
    ended = flight.end_ns if last is None else min(flight.end_ns, last[1])
    gap = flight.attributes.get(names.ATTR_POLL_GAP)
    if ended == flight.end_ns and isinstance(gap, int):
        draft.flight_uncertainty_ns += min(gap, max(flight.duration_ns, 0))
    if submit is not None and submit.start_ns <= ended < submit.end_ns:
        # A small WRITE can be over, and counted by D, before the call that posted it returns on P.
        draft.notes.append(f"transfer ended {submit.end_ns - ended} ns before the post call returned")
        draft.add(f"{prefix}submit", submit.start_ns, ended, submit)
        return ended
    if submit is not None:
        draft.add(f"{prefix}submit", submit.start_ns, submit.end_ns, submit)
    draft.add(f"{prefix}flight", flight.start_ns, ended, flight)
    return ended


def _plan_first_step(draft: Draft, request: RequestSpans, ended_ns: int | None, first_token_ns: int) -> None:
    step = draft.need(request.first_step, names.SPAN_FIRST_STEP)
    if step is not None:
        draft.add("notify", ended_ns, step.start_ns)
        draft.add("first_step", step.start_ns, step.end_ns, step)
        draft.add("deliver", step.end_ns, first_token_ns)


def _plan_cached(draft: Draft, request: RequestSpans, start_ns: int, first_token_ns: int) -> None:
    """Push without anything to transfer: D had the prompt cached and did not wait for P at all."""
    leg = draft.need(request.leg_decode, names.SPAN_LEG_DECODE)
    draft.add("route", start_ns, leg.start_ns if leg else None)
    _plan_first_step(draft, request, None, first_token_ns)


def _plan_plain(draft: Draft, request: RequestSpans, start_ns: int, first_token_ns: int) -> None:
    """D computed the prompt alone: ``route`` up to the leg that was answered, then D's own queue and prefill.

    They come from kvpath's spans where D's connector made them, else from vLLM's ``llm_request``, which carries
    durations but no instants: they are laid end to end before its first token.
    """
    leg = draft.need(request.leg_decode, names.SPAN_LEG_DECODE)
    draft.add("route", start_ns, leg.start_ns if leg else None)
    if request.leg_prefill is not None:
        failed_ns = request.leg_prefill.duration_ns
        draft.notes.append(f"route includes {failed_ns} ns of a prefill leg whose answer could not be used")
    if request.compute is not None:
        if request.queue is not None:
            draft.add("prefill_queue", request.queue.start_ns, request.queue.end_ns, request.queue)
        draft.add("prefill", request.compute.start_ns, request.compute.end_ns, request.compute)
        draft.add("deliver", request.compute.end_ns, first_token_ns)
        return
    served = [s for s in request.by_name.get(SPAN_LLM_REQUEST, ()) if leg and s.parent_span_id == leg.span_id]
    times = _llm_times(served[-1]) if served else None
    if times is None:
        draft.notes.append("D's own prefill is not traced: it is unexplained")
        return
    queue_ns, prefill_ns, first_ns = times
    out = served[-1].start_ns + first_ns
    draft.add("prefill_queue", out - prefill_ns - queue_ns, out - prefill_ns, served[-1])
    draft.add("prefill", out - prefill_ns, out, served[-1])
    draft.add("deliver", out, first_token_ns)
    draft.notes.append("queue and prefill are durations of vLLM's llm_request span")


def _llm_times(span: Span) -> tuple[int, int, int] | None:
    """(queue, prefill, time to first token) of vLLM's span in nanoseconds."""
    values = [span.attributes.get(k) for k in (LLM_TIME_IN_QUEUE, LLM_TIME_IN_PREFILL, LLM_TIME_TO_FIRST_TOKEN)]
    times = [round(v * 1e9) for v in values if isinstance(v, int | float)]
    return (times[0], times[1], times[2]) if len(times) == 3 else None
