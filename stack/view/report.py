"""``kvpath report --html``: the comparison, the verdict and the telling requests of each mode in one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stack.analysis.compare import Analysed, compare, pooled_bounds
from stack.analysis.report_text import report_text
from stack.analysis.terminal import Terminal
from stack.analysis.trace import Trace
from stack.view.assemble import single_file
from stack.view.comparison import comparison_document
from stack.view.detail import request_detail
from stack.view.rows import STAGE_ORDER
from stack.view.verdict import verdict_document

SLOWEST = 5  # of each mode
_WIDTH = 100  # columns of the text for readers without JavaScript


def html_report(traces: Sequence[Trace], analysed: Sequence[Analysed], result: Path | None, source: str) -> str:
    """Returns the document. ``analysed`` belongs to ``traces``, in the same order."""
    return single_file(
        "kvpath report",
        report_data(traces, analysed, result, source),
        report_text(compare(analysed), Terminal(width=_WIDTH)),
    )


def report_data(
    traces: Sequence[Trace], analysed: Sequence[Analysed], result: Path | None, source: str
) -> dict[str, Any]:
    """Returns what the page would otherwise ask a store for, by the path that it would ask."""
    by_id = {trace.trace_id: trace for trace in traces}
    pooled = pooled_bounds(traces)
    details = {t: request_detail(by_id[t], pooled) for t in telling(analysed)}
    requests = {
        "source": source,
        "empty": "This report holds no request.",
        "left": 0,
        "stage_order": STAGE_ORDER,
        "requests": [detail["row"] for detail in details.values()],
        "selection": f"Of each mode: the {SLOWEST} slowest requests, the one nearest the median, and failures.",
    }
    verdict = verdict_document(result, by_id)
    return {
        "requests": requests,
        "comparison": comparison_document(analysed) | {"left": 0, "beside": verdict["beside"]},
        "verdict": verdict,
        **{f"requests/{trace_id}": detail for trace_id, detail in details.items()},
    }


def telling(analysed: Sequence[Analysed]) -> list[str]:
    """Returns trace ids: of each mode the slowest requests, the one at the median, and failures, without repetition."""
    chosen: list[str] = []
    for mode in dict.fromkeys(a.mode for a in analysed):
        members = [a for a in analysed if a.mode == mode]
        counted = sorted((a for a in members if a.path and not a.excluded), key=lambda a: -(a.path.ttft_ns))  # type: ignore[union-attr]
        chosen += [a.trace_id for a in counted[:SLOWEST]]
        chosen += [counted[len(counted) // 2].trace_id] if counted else []
        chosen += [a.trace_id for a in members if a.path is None][:SLOWEST]
    return list(dict.fromkeys(chosen))
