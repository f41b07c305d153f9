"""One line of the page's list of requests, as plain data. Times are nanoseconds unless the name says otherwise."""

from __future__ import annotations

from typing import Any

from connector import names
from connector.stages import STAGE_NAMES, UNEXPLAINED
from stack.analysis.compare import Analysed, stage_time
from stack.analysis.request import request_spans
from stack.analysis.trace import Trace

STAGE_ORDER = (*STAGE_NAMES, UNEXPLAINED)

STATUS_COUNTED = "counted"
STATUS_LEFT_OUT = "left out"
STATUS_FAILED = "failed"


def request_row(trace: Trace, analysed: Analysed) -> dict[str, Any]:
    """Returns the row of one trace; ``stages`` are in the order of :data:`STAGE_ORDER`, ``None`` without a path."""
    path = analysed.path
    root = trace.server_span()
    failed = root is not None and root.failed
    start = root.start_ns if root else min(s.start_ns for s in trace.spans)
    status = STATUS_FAILED if failed else STATUS_LEFT_OUT if analysed.excluded else STATUS_COUNTED
    return {
        "id": trace.trace_id,
        "request_id": path.request_id if path else request_spans(trace).request_id,
        "mode": analysed.mode,
        "start_ms": start / 1e6,
        "ttft_ns": path.ttft_ns if path else None,
        "total_ns": root.duration_ns if root else None,
        "status": status,
        "reason": analysed.excluded or None,
        "fallback": str(root.attributes.get(names.ATTR_FALLBACK, "")) or None if root else None,
        "incomplete": len(analysed.defects),
        "stages": [stage_time(path, stage) for stage in STAGE_ORDER] if path else None,
    }
