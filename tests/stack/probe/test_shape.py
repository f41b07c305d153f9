from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stack.probe.shape import BlockShape

QWEN3_8B = {
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "head_dim": 128,
    "torch_dtype": "bfloat16",
}


def config(tmp_path: Path, content: Any) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(content))
    return tmp_path


def test_an_8b_model_has_64_kib_blocks_and_moves_576_mib_for_4096_tokens(tmp_path: Path) -> None:
    shape = BlockShape.from_model_config(config(tmp_path, QWEN3_8B))
    assert shape.block_bytes == 64 * 1024
    assert shape.layers * shape.blocks(4096) == 9216
    assert shape.transfer_bytes(4096) == 576 * 2**20


def test_a_part_of_a_block_takes_a_block() -> None:
    shape = BlockShape(layers=2, kv_heads=1, head_size=8, block_size=16)
    assert [shape.blocks(tokens) for tokens in (1, 16, 17)] == [1, 1, 2]


def test_the_file_itself_can_be_named(tmp_path: Path) -> None:
    folder = config(tmp_path, QWEN3_8B)
    assert BlockShape.from_model_config(folder / "config.json") == BlockShape.from_model_config(folder)


def test_head_size_and_kv_heads_have_the_field_s_defaults(tmp_path: Path) -> None:
    plain = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256}
    shape = BlockShape.from_model_config(config(tmp_path, plain), block_size=32)
    assert (shape.kv_heads, shape.head_size, shape.dtype, shape.block_size) == (4, 64, "bfloat16", 32)


def test_the_cache_s_own_dtype_wins(tmp_path: Path) -> None:
    assert BlockShape.from_model_config(config(tmp_path, QWEN3_8B), dtype="fp8").block_bytes == 32 * 1024


@pytest.mark.parametrize(("ranks", "heads"), [(1, 8), (4, 2), (16, 1)])
def test_ranks_divide_the_heads_and_copy_the_last_one(tmp_path: Path, ranks: int, heads: int) -> None:
    folder = config(tmp_path, QWEN3_8B)
    assert BlockShape.from_model_config(folder, tensor_parallel_size=ranks).kv_heads == heads


def test_a_latent_cache_has_one_tensor_on_every_rank(tmp_path: Path) -> None:
    latent = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "dtype": "bfloat16"}
    shape = BlockShape.from_model_config(config(tmp_path, latent), tensor_parallel_size=8)
    assert (shape.tensors, shape.kv_heads, shape.head_size) == (1, 1, 576)
    assert shape.block_bytes == 576 * 2 * 16


def test_a_multimodal_model_keeps_it_under_text_config(tmp_path: Path) -> None:
    shape = BlockShape.from_model_config(config(tmp_path, {"text_config": QWEN3_8B, "vision_config": {}}))
    assert shape.layers == 36


def test_layers_without_a_kv_cache_do_not_count(tmp_path: Path) -> None:
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 9
    assert BlockShape.from_model_config(config(tmp_path, QWEN3_8B | {"layer_types": kinds})).layers == 9


@pytest.mark.parametrize("content", [[], {}, {"num_hidden_layers": 2}, QWEN3_8B | {"torch_dtype": "complex64"}])
def test_what_describes_no_attention_model_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ValueError, match=r"config\.json|dtype"):
        BlockShape.from_model_config(config(tmp_path, content))


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        BlockShape.from_model_config(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [{"layers": 0}, {"kv_heads": -1}, {"head_size": True}, {"block_size": 1.5}, {"dtype": "int3"}, {"tensors": 3}],
)
def test_a_shape_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BlockShape(**{"layers": 2, "kv_heads": 2, "head_size": 64, **wrong})


def test_a_block_must_be_whole_words() -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        BlockShape(layers=1, kv_heads=1, head_size=1, dtype="fp8", block_size=1)
