"""What an arm of the GPU measurements gave, as the one document that ``stack/experiment/results/`` holds.

It has the environment and every figure, not the single requests. Paths of the host are not in it: the work folder is
called RUN, the interpreter python3.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# In the document's order: its key → the file in the arm's folder.
_FILES = {
    "done": "done.json",
    "environment": "ab/environment.json",
    "plan": "ab/plan.json",
    "probe": "ab/probe.json",
    "probe_other_block_sizes": "probe-other-block-sizes.json",
    "same_text": "same-text.json",
    "result": "ab/result.json",
    "overhead": "overhead.json",
}
_TRACING_ENVIRONMENT = "environment.json"


def arm_document(folder: Path) -> dict[str, Any]:
    """Returns what is there; an arm that was cut short lacks what comes last."""
    files = dict(_FILES)
    if not (folder / files["environment"]).exists():
        files["environment"] = _TRACING_ENVIRONMENT
    found = {key: _read(folder, name) for key, name in files.items() if (folder / name).exists()}
    return {"arm": folder.name, **found}


def write_result(folder: Path, out: Path) -> None:
    """Writes ``NAME.json`` into ``out``, if the arm has measured anything."""
    document = arm_document(folder)
    if document.keys() & {"result", "overhead"}:
        (out / f"{folder.name}.json").write_text(json.dumps(document, indent=1) + "\n")


def _read(folder: Path, name: str) -> Any:
    text = (folder / name).read_text()
    return json.loads(text.replace(str(folder.parent), "RUN").replace(sys.executable, "python3"))
