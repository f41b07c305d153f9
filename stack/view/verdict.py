"""The experiment's verdict, where its result lies beside the traces; anything else is "no verdict" and says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULT_NAME = "result.json"


def result_beside(traces: Path) -> Path:
    """Returns where the result of the run lies whose traces are in ``traces`` (a file of any kind)."""
    return traces.parent / RESULT_NAME


def verdict_document(result: Path | None) -> dict[str, Any]:
    """Returns ``headline``, ``sentences``, ``result`` and ``problem``; without a verdict the first two are empty."""
    document: dict[str, Any] = {"headline": "", "sentences": [], "result": "", "problem": ""}
    if result is None or not result.is_file():
        return document
    try:
        content = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return document | {"problem": f"{result.name} cannot be read: {error}"}
    verdict = content.get("verdict") if isinstance(content, dict) else None
    if not isinstance(verdict, dict):
        return document
    raw = verdict.get("sentences")
    sentences = [s for s in raw if isinstance(s, str)] if isinstance(raw, list) else []
    headline = verdict.get("headline")
    headline = headline if isinstance(headline, str) else ""
    return document | {
        "headline": headline,
        "sentences": [sentence for sentence in sentences if sentence != headline],
        "result": f"{result.parent.name}/{result.name}",
    }
