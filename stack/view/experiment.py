"""What an experiment's result says beside its verdict: the comparison with intervals, the link's rates, counts, notes.

Pure, and made of plain JSON, so that the page needs nothing of numpy. Times are nanoseconds. A part that has another
shape than expected is left out: the verdict's own sentences do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

STATISTICS = ("mean", "p50", "p90", "p99")
_FIGURES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "total": "total", "tokens_per_s": "tokens/s"}
_RATES = ("tokens_per_s",)  # per second; everything else is a time


def experiment_document(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``arms``, ``difference`` (in words), ``notes`` and one of ``cells`` for every load."""
    cells = [cell for cell in _list(result, "cells") if isinstance(cell, Mapping)]
    return {
        "arms": [str(arm) for arm in _list(result, "arms")],
        "difference": str(result.get("difference", "")),
        "notes": _texts(result, "notes"),
        "cells": [_cell(cell) for cell in cells],
    }


def _cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    verdict = _map(cell, "verdict")
    link = _map(verdict, "link")
    return {
        "load": _load(cell),
        "sentences": _texts(verdict, "sentences"),
        "notes": _texts(verdict, "notes"),
        "figures": list(_rows(_map(cell, "figures"), _FIGURES)),
        "stages": [row for row in _rows(_map(cell, "stages"), None) if row["first"] or row["second"]],
        "counts": [_count(arm) for arm in _list(cell, "arms") if isinstance(arm, Mapping)],
        "transports": {str(operation): str(name) for operation, name in _map(link, "transports").items()},
        "rates": [
            {"condition": str(rate.get("condition", "")), "write": rate["write"], "read": rate["read"]}
            for rate in _list(link, "rates")
            if isinstance(rate, Mapping) and _number(rate.get("write")) and _number(rate.get("read"))
        ],
    }


def _load(cell: Mapping[str, Any]) -> str:
    rate, given, out = (cell.get(key) for key in ("rate", "input_tokens", "output_tokens"))
    prompts = "prompts of a file" if given is None else f"about {given} tokens in"
    what = "conversations/s" if (cell.get("turns") or 1) != 1 else "req/s"
    return f"{rate:g} {what}, {prompts}, {out} out" if _number(rate) else ""


def _rows(figures: Mapping[str, Any], titles: Mapping[str, str] | None) -> Iterable[dict[str, Any]]:
    """One row for every figure and statistic, in the order of the result."""
    for name, by_statistic in figures.items():
        if (titles is not None and name not in titles) or not isinstance(by_statistic, Mapping):
            continue
        for statistic in STATISTICS:
            one = _map(by_statistic, statistic)
            difference = _map(one, "difference")
            values = (one.get("first"), one.get("second"), difference.get("value"))
            if all(map(_number, values)):
                yield {
                    "name": f"{titles[name] if titles else name} {statistic}",
                    "unit": "1/s" if name in _RATES else "ms",
                    **dict(zip(("first", "second", "value"), values, strict=True)),
                    **{end: difference[end] if _number(difference.get(end)) else None for end in ("low", "high")},
                    "differs": one.get("differs"),
                    "believed": one.get("believed") is not False,
                }


def _count(arm: Mapping[str, Any]) -> dict[str, Any]:
    reasons = {
        title: {str(reason): number for reason, number in _map(arm, key).items()}
        for title, key in (("left out", "excluded"), ("without stages", "without_stages"), ("incomplete", "incomplete"))
    }
    numbers = {key: arm.get(key, 0) for key in ("seen", "counted", "traced", "warm_up_excluded")}
    return {"name": str(arm.get("name", "")), **numbers, "reasons": reasons}


def _map(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = holder.get(key)
    return found if isinstance(found, Mapping) else {}


def _list(holder: Mapping[str, Any], key: str) -> list[Any]:
    found = holder.get(key)
    return list(found) if isinstance(found, list | tuple) else []


def _texts(holder: Mapping[str, Any], key: str) -> list[str]:
    return [text for text in _list(holder, key) if isinstance(text, str)]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
