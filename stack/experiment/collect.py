"""Fetches the traces of requests that have ended, once they are complete or complete no more."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from stack.analysis.complete import defects
from stack.analysis.source import TraceSource
from stack.analysis.trace import Trace

SETTLE_TIMEOUT_S = 30.0  # processes export twice a second; blocks may be held a little after the last token
POLL_S = 0.5


def collect_traces(
    store_url: str,
    trace_ids: Sequence[str],
    say: Callable[[str], None],
    *,
    engine_spans: bool = True,
    timeout_s: float = SETTLE_TIMEOUT_S,
) -> list[Trace]:
    """Returns the traces in the order of ``trace_ids``, waiting at most ``timeout_s`` for late spans.

    Absent ones are left out. ``engine_spans``: a trace is complete only with vLLM's own spans.
    Raises :class:`stack.analysis.source.SourceError` when the store does not answer.
    """
    complete: dict[str, Trace] = {}
    partial: dict[str, Trace] = {}
    deadline = time.monotonic() + timeout_s
    with TraceSource(store_url) as source:
        while True:
            for trace_id in trace_ids:
                if trace_id in complete:
                    continue
                trace = source.fetch(trace_id)
                if trace is not None:
                    (partial if defects(trace, engine_spans=engine_spans) else complete)[trace_id] = trace
            missing = len(trace_ids) - len(complete)
            if not missing or time.monotonic() > deadline:
                break
            say(f"{len(complete)} of {len(trace_ids)} traces are complete; waiting for late spans")
            time.sleep(POLL_S)
    found = partial | complete
    return [found[trace_id] for trace_id in trace_ids if trace_id in found]
