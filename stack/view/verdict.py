"""The experiment's result: its verdict, its figures, and whether the requests on the page are the experiment's.

One that is asked for must be one; one that merely lies beside the traces may be anything, and is then no verdict.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stack.view.experiment import experiment_document

RESULT_NAME = "result.json"
REQUESTS_NAME = "requests.jsonl"  # of a run's folder: a row a request, with its trace id


class ResultError(ValueError):
    """What was named as a result is none; one line."""


def result_beside(traces: Path) -> Path:
    """Returns where the result of the run lies whose traces are in ``traces`` (a file of any kind)."""
    return traces.parent / RESULT_NAME


def named_result(given: Path | None) -> Path | None:
    """Returns the file that ``--result`` names, or that lies in the folder it names; raises :class:`ResultError`."""
    if given is None:
        return None
    path = given / RESULT_NAME if given.is_dir() else given
    if not path.is_file():
        raise ResultError(f"--result {given}: there is no such file, and no {RESULT_NAME} in such a folder")
    try:
        content = _read(path)
    except (OSError, ValueError) as error:
        raise ResultError(f"--result {given}: {path.name} cannot be read: {error}") from None
    if _with_verdict(content) is None:
        raise ResultError(
            f"--result {given}: there is no verdict in it; give the folder or {RESULT_NAME} of a `kvpath ab`"
        )
    return path


def verdict_document(result: Path | None, shown: Iterable[str] = ()) -> dict[str, Any]:
    """Returns ``headline``, ``sentences``, ``result``, ``problem``, ``beside`` and ``experiment``.

    Without a verdict all are empty. ``shown`` are the trace ids of the page; ``beside`` says how they and the
    experiment's requests belong together.
    """
    document: dict[str, Any] = {"headline": "", "sentences": [], "result": "", "problem": ""}
    document |= {"beside": "", "experiment": None}
    if result is None or not result.is_file():
        return document
    try:
        content = _with_verdict(_read(result))
    except (OSError, ValueError) as error:
        return document | {"problem": f"{result.name} cannot be read: {error}"}
    if content is None:
        return document
    verdict = content["verdict"]
    raw = verdict.get("sentences")
    sentences = [s for s in raw if isinstance(s, str)] if isinstance(raw, list) else []
    headline = verdict.get("headline")
    headline = headline if isinstance(headline, str) else ""
    return document | {
        "headline": headline,
        "sentences": [sentence for sentence in sentences if sentence != headline],
        "result": f"{result.parent.name}/{result.name}",
        "beside": _beside(result, set(shown)),
        "experiment": experiment_document(content),
    }


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _with_verdict(content: Any) -> Mapping[str, Any] | None:
    """The result in ``content``: itself, or what a GPU measurement's document holds; ``None`` without a verdict."""
    for found in (content, content.get("result") if isinstance(content, Mapping) else None):
        if isinstance(found, Mapping) and isinstance(found.get("verdict"), Mapping):
            return found
    return None


def _beside(result: Path, shown: set[str]) -> str:
    where = f"{result.parent.name}/{result.name}"
    measured = _trace_ids(result.with_name(REQUESTS_NAME))
    if measured is None:
        return f"The verdict is about the requests of {where}; the requests on this page may be others."
    both = len(shown & measured)
    if not both:
        return f"The verdict is about the {len(measured)} requests of {where}; none of them is on this page."
    return f"The verdict is about the {len(measured)} requests of {where}; {both} of the {len(shown)} here are of them."


def _trace_ids(requests: Path) -> set[str] | None:
    """Those of a run's requests; ``None`` where they are not recorded."""
    try:
        rows = [json.loads(line) for line in requests.read_text(encoding="utf-8").splitlines()]
        return {row["trace_id"] for row in rows if row["trace_id"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
