"""The link probe of an experiment: made here where engines and NIXL are on this host, else read from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stack.experiment.errors import EXIT_USAGE, ExperimentError
from stack.experiment.plan import Plan
from stack.experiment.presets import PRESETS
from stack.experiment.target import Target

SCHEMA = "kvpath.probe/1"
REPETITIONS = 15
TOKENS_OF_A_FILE = 1024  # what is probed when prompts come from a file


def local_probe(target: Target, plan: Plan) -> Mapping[str, Any]:
    """Probes the link between two processes of this host with the blocks of the plan's longest prompt.

    Raises :class:`ExperimentError` with the reason when it cannot; the experiment then goes on without.
    """
    preset = PRESETS[plan.preset]
    if preset.probe_device is None:
        raise ExperimentError(
            "the engines' devices are theirs: run `kvpath probe --json` between their hosts and give --probe FILE"
        )
    try:
        from stack.probe import BlockShape, run_probe
    except ImportError as error:
        raise ExperimentError(f"stack.probe cannot be used here ({error})") from None
    if not target.model_path or not Path(target.model_path).is_dir():
        raise ExperimentError(f"the shape of {target.model}'s KV blocks is unknown: its directory is not on this host")
    tokens = max(cell.input_tokens or TOKENS_OF_A_FILE for cell in plan.cells)
    try:
        shape = BlockShape.from_model_config(target.model_path, block_size=preset.block_size, dtype=preset.kv_dtype)
        return run_probe(shape, tokens, REPETITIONS, device=preset.probe_device)
    except Exception as error:  # whatever NIXL raises: an experiment without a probe is worth more than none
        raise ExperimentError(f"the probe failed: {' '.join(str(error).split())}") from error


def read_probe(path: Path) -> Mapping[str, Any]:
    """Reads what ``kvpath probe --json`` printed; raises :class:`ExperimentError`, which is wrong usage here."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise ExperimentError(f"cannot read {path}: {error.strerror or error}", EXIT_USAGE) from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not isinstance(found.get("results"), list):
        raise ExperimentError(f"{path} is not the JSON of `kvpath probe` ({SCHEMA})", EXIT_USAGE)
    return found
