from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stack.engines import model
from stack.engines.model import MARKER, ModelError, is_complete, prepare_random, random_config

SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache in which the real model is already converted (its weights are not needed here)."""
    directory = tmp_path / "models" / f"{model.MODEL_NAME.lower()}-v{model.FORMAT}"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(SMOLLM2))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    (directory / "model.safetensors").write_bytes(b"weights")
    (directory / MARKER).write_text("{}")
    return tmp_path


def test_the_random_model_keeps_vocabulary_and_architecture() -> None:
    config = random_config(SMOLLM2)
    assert config["vocab_size"] == 49152
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_hidden_layers"] == 2


def test_heads_and_widths_of_the_random_model_fit_each_other_and_two_ranks() -> None:
    config = random_config(SMOLLM2)
    assert config["hidden_size"] == config["num_attention_heads"] * config["head_dim"]  # type: ignore[operator]
    assert config["num_key_value_heads"] % 2 == 0  # type: ignore[operator]


def test_the_random_model_has_the_tokenizer_and_no_weights(cache: Path) -> None:
    directory = prepare_random(cache, lambda line: None)
    assert is_complete(directory)
    present = {file.name for file in directory.iterdir()}
    assert present == {"config.json", "tokenizer.json", "chat_template.jinja", MARKER}


def test_a_prepared_model_is_not_made_again(cache: Path) -> None:
    directory = prepare_random(cache, lambda line: None)
    (directory / "witness").touch()
    said: list[str] = []
    assert prepare_random(cache, said.append) == directory
    assert (directory / "witness").exists()
    assert said == []


def test_a_failure_leaves_nothing_behind(cache: Path) -> None:
    target = cache / "models" / "new"

    def build() -> None:
        with model._built_aside(target, {}) as building:
            (building / "half").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        build()
    assert not target.exists()
    assert not [entry for entry in target.parent.iterdir() if entry.name.startswith(".")]


def test_an_incomplete_directory_is_replaced(cache: Path) -> None:
    target = cache / "models" / "new"
    target.mkdir()
    (target / "half").touch()
    with model._built_aside(target, {}) as building:
        (building / "whole").touch()
    assert {file.name for file in target.iterdir()} == {"whole", MARKER}


def test_of_two_that_build_at_once_the_first_stays(cache: Path) -> None:
    target = cache / "models" / "new"
    with model._built_aside(target, {}) as slow:
        with model._built_aside(target, {}) as fast:
            (fast / "fast").touch()
        (slow / "slow").touch()
    assert (target / "fast").exists()
    assert not slow.exists()


BUILDER = """
import sys, time
from pathlib import Path
from stack.engines import model
with model._built_aside(Path(sys.argv[1]), {}) as building:
    print(building, flush=True)
    time.sleep(600)
"""


def test_what_a_killed_process_was_building_is_removed_and_what_is_being_built_is_not(cache: Path) -> None:
    target = cache / "models" / f"{model.RANDOM_MODEL_NAME}-v{model.FORMAT}"
    argv = (sys.executable, "-c", BUILDER, str(target))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as builder:
        try:
            assert builder.stdout is not None
            building = Path(builder.stdout.readline().strip())
            prepare_random(cache, lambda line: None)
            assert building.is_dir()
        finally:
            builder.send_signal(signal.SIGKILL)
    assert building.is_dir()
    prepare_random(cache, lambda line: None)  # prepared already; what was abandoned goes all the same
    assert [entry.name for entry in target.parent.iterdir() if entry.name.startswith(".")] == []


def test_whoever_builds_makes_sure_that_nobody_removes_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process looks for what is abandoned just between the making of a directory and its lock."""
    target = cache / "models" / "new"
    made: list[str] = []
    make = model.tempfile.mkdtemp

    def made_and_looked_at(**options: object) -> str:
        made.append(make(**options))
        if len(made) == 1:
            model._remove_abandoned(target)
        return made[-1]

    monkeypatch.setattr(model.tempfile, "mkdtemp", made_and_looked_at)
    with model._built_aside(target, {}) as building:
        (building / "whole").touch()
    assert len(made) == 2
    assert (target / "whole").exists()


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"cannot write to .*file/models: Not a directory; .*KVPATH_CACHE$"):
        model.prepare_smollm2(tmp_path / "file", lambda line: None)


def test_the_model_file_is_found_without_importing_its_package() -> None:
    assert model.gguf_path().stat().st_size > 50_000_000


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPATH_CACHE", "/somewhere/else")
    assert model.default_cache() == Path("/somewhere/else")
    monkeypatch.delenv("KVPATH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert model.default_cache() == Path("/xdg/kvpath")
