"""Calls the link probe for an experiment, when this machine can: NIXL is installed and the model's shape is known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stack.experiment.plan import Plan
from stack.experiment.presets import PRESETS
from stack.experiment.run import ExperimentError
from stack.experiment.target import Target

REPETITIONS = 5
TOKENS_OF_A_FILE = 1024  # what is probed when prompts come from a file


def local_probe(target: Target, plan: Plan) -> Mapping[str, Any]:
    """Probes the link between two processes of this host with the blocks of the plan's longest prompt.

    Raises :class:`ExperimentError` with the reason when it cannot; the experiment then goes on without.
    """
    try:
        from stack.probe import BlockShape, run_probe
    except ImportError as error:
        raise ExperimentError(f"stack.probe cannot be used here ({error})") from None
    if not target.model_path or not Path(target.model_path).is_dir():
        raise ExperimentError(f"the shape of {target.model}'s KV blocks is unknown: its directory is not on this host")
    preset = PRESETS[plan.preset]
    tokens = max(cell.input_tokens or TOKENS_OF_A_FILE for cell in plan.cells)
    try:
        shape = BlockShape.from_model_config(target.model_path, block_size=preset.block_size, dtype=preset.kv_dtype)
        return run_probe(shape, tokens, REPETITIONS)
    except Exception as error:  # whatever NIXL raises: an experiment without a probe is worth more than none
        raise ExperimentError(f"the probe failed: {' '.join(str(error).split())}") from error
