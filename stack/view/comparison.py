"""The stage comparison as the page draws it: the report's document, and push minus pull for every stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connector import names
from connector.stages import STAGES
from stack.analysis.compare import PERCENTILES, SAMPLES_BEYOND, Analysed, Comparison, Distribution, compare
from stack.analysis.report_json import report_document
from stack.view.rows import STAGE_ORDER

MEASURES = ("mean", *(f"p{p}" for p in PERCENTILES))


def comparison_document(analysed: Sequence[Analysed]) -> dict[str, Any]:
    """Returns figures by mode and ``differences`` (push minus pull; ``None`` when one of them has no figures)."""
    found = compare(analysed)
    document = report_document(found, ())
    del document["requests"]
    return document | {
        "stage_order": STAGE_ORDER,
        "stage_words": {stage.name: f"{stage.starts} → {stage.ends}" for stage in STAGES},
        "measures": MEASURES,
        "samples_needed": {f"p{p}": SAMPLES_BEYOND * 100 // (100 - p) for p in PERCENTILES},
        "differences": _differences(found),
    }


def _differences(found: Comparison) -> dict[str, Any] | None:
    push, pull = found.modes.get(names.MODE_PUSH), found.modes.get(names.MODE_PULL)
    if push is None or pull is None or push.ttft is None or pull.ttft is None:
        return None
    return {
        "of": [names.MODE_PUSH, names.MODE_PULL],
        "ttft": _less(push.ttft, pull.ttft),
        "stages": {name: _less(push.stages[name].time, pull.stages[name].time) for name in STAGE_ORDER},
    }


def _less(one: Distribution, other: Distribution) -> dict[str, float]:
    return {measure: getattr(one, measure) - getattr(other, measure) for measure in MEASURES}
