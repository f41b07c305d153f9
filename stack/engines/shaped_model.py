"""Models of Qwen3-8B's and Qwen3-32B's shape with SmolLM2's tokenizer, for measurements on hosts without a model.

Timing does not depend on what the weights are, so engines may start with ``--load-format dummy``. Text does: vLLM's
dummy weights (and norms) are around 0.001, so small that no token depends on the KV cache, and comparing texts would
then prove nothing. :func:`write_weights` makes random weights of usual scale, with attention that picks few tokens:
a block that arrives wrong changes the text. Nobody has trained them; the text is noise, equal noise for equal KV.

``python -m stack.engines.shaped_model DIRECTORY`` writes the weights in a process of its own: it loads torch.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.engines.model import ModelError


@dataclass(frozen=True, slots=True)
class Shape:
    """What differs between the models of one family; eight KV heads of size 128 are common to them."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int


QWEN3_8B = Shape("qwen3-8b-shape", 36, 4096, 12288, 32)
QWEN3_32B = Shape("qwen3-32b-shape", 64, 5120, 25600, 64)
INDEX_FILE = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_OPTIONAL_FILES = ("chat_template.jinja", "special_tokens_map.json")
_QK_NORM = 1.7  # logits of attention then spread by 1.7² = 2.9: a few of 16k tokens hold nearly all the weight


def shaped_config(shape: Shape = QWEN3_8B, layers: int | None = None) -> dict[str, Any]:
    """Returns ``config.json``: the model's but for the vocabulary, which is the tokenizer's."""
    layers = layers or shape.layers
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "bfloat16",
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": 40960,
        "max_window_layers": layers,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1_000_000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 49152,
    }


def prepare_shaped(directory: Path, tokenizer: Path, shape: Shape = QWEN3_8B, layers: int | None = None) -> Path:
    """Writes configuration and tokenizer (from the directory ``tokenizer``) and returns the directory.

    Raises :class:`ModelError` when a file of the tokenizer is not there.
    """
    missing = [name for name in TOKENIZER_FILES if not (tokenizer / name).is_file()]
    if missing:
        raise ModelError(f"{tokenizer} lacks {', '.join(missing)}; give the directory of a prepared SmolLM2")
    directory.mkdir(parents=True, exist_ok=True)
    for name in (*TOKENIZER_FILES, *_OPTIONAL_FILES):
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, directory / name)
    (directory / "config.json").write_text(json.dumps(shaped_config(shape, layers), indent=2))
    return directory


def has_weights(directory: Path) -> bool:
    return (directory / INDEX_FILE).is_file()


def weight_shapes(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, tuple[int, ...]]]]:
    """Yields the files and what is in each: weight → shape (rows, columns), or (length,) for a norm."""
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    vocabulary = (config["vocab_size"], hidden)
    yield (
        "model-ends.safetensors",
        {"model.embed_tokens.weight": vocabulary, "model.norm.weight": (hidden,), "lm_head.weight": vocabulary},
    )
    for layer in range(config["num_hidden_layers"]):
        shapes = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "self_attn.q_norm": (size,),
            "self_attn.k_norm": (size,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        named = {f"model.layers.{layer}.{name}.weight": shape for name, shape in shapes.items()}
        yield f"model-layer-{layer:02d}.safetensors", named


def write_weights(directory: Path, seed: int = 0) -> None:
    """Writes random weights (bf16) for the directory's configuration; made on the GPU where there is one."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((directory / "config.json").read_text())
    generator = torch.Generator("cuda" if torch.cuda.is_available() else "cpu").manual_seed(seed)
    where: dict[str, str] = {}
    total = 0
    for file, shapes in weight_shapes(config):
        tensors = {name: _random(torch, generator, name, shape) for name, shape in shapes.items()}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, file)
        total += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (directory / INDEX_FILE).write_text(json.dumps(index))  # last: it says that all are there


def _random(torch: Any, generator: Any, name: str, shape: tuple[int, ...]) -> Any:
    if len(shape) == 1:
        scale = _QK_NORM if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
        return torch.full(shape, scale, dtype=torch.bfloat16)
    spread = 1.0 if "embed_tokens" in name else shape[1] ** -0.5
    made = torch.randn(shape, generator=generator, device=generator.device, dtype=torch.bfloat16)
    return (made * spread).cpu()


if __name__ == "__main__":
    write_weights(Path(sys.argv[1]))
