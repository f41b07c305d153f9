from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from stack.engines.model import ModelError
from stack.engines.shaped_model import (
    QWEN3_32B,
    has_weights,
    prepare_shaped,
    shaped_config,
    weight_shapes,
    write_weights,
)
from stack.probe.shape import BlockShape

SMALL = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4} | {
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "num_hidden_layers": 3,
    "max_window_layers": 3,
}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (directory / name).write_text("{}")
    return directory


def test_the_kv_cache_has_the_shape_of_qwen3_8b(tmp_path: Path, tokenizer: Path) -> None:
    directory = prepare_shaped(tmp_path / "m", tokenizer)
    shape = BlockShape.from_model_config(directory, block_size=16)
    assert (shape.layers, shape.kv_heads, shape.head_size, shape.dtype) == (36, 8, 128, "bfloat16")
    assert shape.block_bytes == 64 * 1024


def test_the_larger_shape_is_qwen3_32bs(tmp_path: Path, tokenizer: Path) -> None:
    directory = prepare_shaped(tmp_path / "m", tokenizer, QWEN3_32B)
    shape = BlockShape.from_model_config(directory, block_size=16)
    assert (shape.layers, shape.kv_heads, shape.head_size, shape.dtype) == (64, 8, 128, "bfloat16")
    config = shaped_config(QWEN3_32B)
    assert (config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]) == (5120, 25600, 64)
    elements = sum(math.prod(s) for _, shapes in weight_shapes(config) for s in shapes.values())
    assert 31e9 < elements < 33e9


def test_a_model_takes_the_tokenizer_and_no_weights(tmp_path: Path, tokenizer: Path) -> None:
    directory = prepare_shaped(tmp_path / "m", tokenizer)
    assert {file.name for file in directory.iterdir()} == {"config.json", "tokenizer.json", "tokenizer_config.json"}
    assert not has_weights(directory)


def test_a_missing_tokenizer_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"lacks tokenizer\.json"):
        prepare_shaped(tmp_path / "m", tmp_path)


def test_the_whole_has_about_as_many_weights_as_qwen3_8b_without_its_vocabulary() -> None:
    count = 0
    for _, shapes in weight_shapes(shaped_config()):
        count += sum(shape[0] * (shape[1] if len(shape) == 2 else 1) for shape in shapes.values())
    assert 7.2e9 < count < 7.5e9


def test_the_text_depends_on_tokens_far_back(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(shaped_config() | SMALL))
    write_weights(tmp_path)
    assert has_weights(tmp_path)
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    prompt = torch.randint(3, 128, (1, 400), generator=torch.Generator().manual_seed(1))
    other = prompt.clone()
    other[0, 100:116] = (other[0, 100:116] + 1) % 128  # one block of 16 tokens
    with torch.no_grad():
        logits = [model(tokens).logits[0, -1] for tokens in (prompt, prompt, other)]
    assert torch.equal(logits[0], logits[1])
    assert (logits[0] - logits[2]).abs().max() > 0.05 * logits[0].std()
