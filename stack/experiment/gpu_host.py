"""What every arm of the GPU measurements needs of its host: the model, a time limit, the packed results."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stack.engines.command_line import engine_argv, engine_env
from stack.engines.launch import RunningStack
from stack.engines.model import ModelError
from stack.engines.processes import Part, RunningPart
from stack.engines.settings import DeploymentSettings
from stack.engines.shaped_model import QWEN3_8B, Shape, has_weights, prepare_shaped

REQUEST_TIMEOUT_S = 240.0
Say = Callable[[str], None]


class TimeIsUp(KeyboardInterrupt):
    """The time limit: ends what runs as Ctrl-C does, also inside an event loop."""


def model_of(args: argparse.Namespace, say: Say, weights: bool = True, shape: Shape = QWEN3_8B) -> Path:
    name = shape.name if args.layers in (None, shape.layers) else f"{shape.name}-{args.layers}-layers"
    directory: Path = args.work / "models" / name
    if not (directory / "config.json").exists():
        if args.tokenizer is None:
            raise ModelError("the model needs a tokenizer: give --tokenizer DIR")
        prepare_shaped(directory, args.tokenizer, shape, args.layers)
    if weights and args.weights == "random" and not has_weights(directory):
        say(f"writing random weights to {directory} (once)")
        log = args.work / "weights.log"
        writing = RunningPart(
            Part("weights", (sys.executable, "-m", "stack.engines.shaped_model", str(directory)), log)
        )
        writing.finish(lambda seconds: say(f"still writing weights ({seconds:.0f} s)"))
        if not has_weights(directory):
            raise ModelError(f"the weights could not be written; {log} says why")
    return directory


def with_engine_args(settings: DeploymentSettings, more: Sequence[str]) -> DeploymentSettings:
    return settings.model_copy(update={"engine_args": (*settings.engine_args, *more)})


def engines_of(stack: RunningStack) -> dict[str, Any]:
    return {
        spec.role: {"argv": list(engine_argv(spec)), "env": engine_env(spec)} for spec in (stack.prefill, stack.decode)
    }


def gpu() -> str | None:
    """Returns what the driver says of the GPU; ``None`` when it cannot be asked."""
    query = "--query-gpu=name,driver_version,memory.total,memory.used"
    try:
        asked = subprocess.run(["nvidia-smi", query, "--format=csv"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() or None


@contextmanager
def time_limit(deadline: float | None) -> Iterator[None]:
    """Raises :class:`TimeIsUp` in the main thread at ``deadline`` (monotonic seconds), if the block still runs."""

    def ring(number: int, frame: object) -> None:
        raise TimeIsUp

    if deadline is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, deadline - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def unpack(folder: Path, packed: Path | None) -> None:
    """Goes on from what an earlier machine packed, when this one has nothing of the arm yet."""
    archive = None if packed is None else packed / f"{folder.name}.tar.gz"
    if archive is not None and archive.is_file() and not folder.exists():
        with tarfile.open(archive) as earlier:
            if hasattr(tarfile, "data_filter"):  # Python 3.11 has it from 3.11.4 on
                earlier.extractall(folder.parent, filter="data")
            else:  # the archive is one that this command has packed
                earlier.extractall(folder.parent)


def pack(folder: Path, out: Path) -> None:
    """Writes ``NAME.tar.gz`` (everything but the trace store) and the readable results of an arm into ``out``."""
    archive = out / f"{folder.name}.tar.gz"
    begun = archive.with_suffix(".part")  # the time limit may ring while this is written
    with tarfile.open(begun, "w:gz") as packed:
        packed.add(folder, folder.name, filter=lambda entry: None if ".sqlite" in entry.name else entry)
    begun.replace(archive)
