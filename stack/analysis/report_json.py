"""The report and the path as plain data for machines; the schema's version says when a meaning changes.

Times are nanoseconds (percentiles and means may be fractional), shares are fractions of TTFT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stack.analysis.compare import PERCENTILES, SAMPLES_BEYOND, Analysed, Comparison, ModeFigures
from stack.analysis.critical_path import CriticalPath

REPORT_SCHEMA = "kvpath.report/1"
PATH_SCHEMA = "kvpath.path/1"


def report_document(comparison: Comparison, analysed: Sequence[Analysed]) -> dict[str, Any]:
    """Returns the comparison and one row a request."""
    return {
        "schema": REPORT_SCHEMA,
        "unit": "ns",
        "percentiles": {
            "method": "linear interpolation between closest ranks (type 7)",
            "believed_with": f"at least {SAMPLES_BEYOND} samples beyond the percentile",
        },
        "traces": comparison.traces,
        "modes": {mode: _mode(figures) for mode, figures in comparison.modes.items()},
        "requests": [_request(item) for item in analysed],
    }


def _mode(figures: ModeFigures) -> dict[str, Any]:
    believed = {f"p{p}": figures.believed(p) for p in PERCENTILES}
    return asdict(figures) | {"believed": believed}


def _request(item: Analysed) -> dict[str, Any]:
    row: dict[str, Any] = {"trace_id": item.trace_id, "mode": item.mode, "excluded": item.excluded or None}
    row["incomplete"] = [str(defect) for defect in item.defects]
    if item.path is not None:
        found = path_document(item.path)
        row |= {key: value for key, value in found.items() if key not in ("schema", "unit", "segments")}
    return row


def path_document(path: CriticalPath) -> dict[str, Any]:
    """Returns one critical path; segment times are nanoseconds after the request came in."""
    raw = asdict(path)
    raw["segments"] = [
        {
            "stage": s.stage,
            "start_ns": s.start_ns - path.start_ns,
            "end_ns": s.end_ns - path.start_ns,
            "span_id": s.span_id or None,
        }
        for s in path.segments
    ]
    return {"schema": PATH_SCHEMA, "unit": "ns", **raw}
