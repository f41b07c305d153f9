"""The KV blocks of a model: how many, and how large. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
WORD = 8  # bytes; memory is filled and checked in words
_WITHOUT_KV = ("linear_attention", "mamba", "mamba2", "conv", "recurrent")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """The KV cache of one engine rank: a region for each layer, divided into blocks.

    ``kv_heads`` are those of one rank (the model's, divided by the tensor parallel size); ``block_size`` is in tokens.
    ``tensors`` is 2 where K and V are kept, 1 for a latent cache (MLA). Raises ``ValueError`` for a shape that cannot
    be.
    """

    layers: int
    kv_heads: int
    head_size: int
    dtype: str = "bfloat16"
    block_size: int = 16
    tensors: int = 2

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_size", "block_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        if self.tensors not in (1, 2):
            raise ValueError(f"tensors must be 1 (latent cache) or 2 (K and V), not {self.tensors!r}")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype {self.dtype!r} is unknown; there are {', '.join(DTYPE_BYTES)}")
        if self.block_bytes % WORD:
            raise ValueError(f"a block of {self.block_bytes} bytes is not a multiple of {WORD} bytes")

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of one layer: one descriptor. vLLM packs K and V of a block together."""
        return self.tensors * self.kv_heads * self.head_size * self.block_size * DTYPE_BYTES[self.dtype]

    def blocks(self, tokens: int) -> int:
        """Returns the blocks that ``tokens`` tokens take, in each layer."""
        return -(-tokens // self.block_size)

    def transfer_bytes(self, tokens: int) -> int:
        """Returns the bytes of one request's KV cache, in whole blocks, all layers."""
        return self.layers * self.blocks(tokens) * self.block_bytes

    @classmethod
    def from_model_config(
        cls,
        path: str | Path,
        *,
        block_size: int = 16,
        dtype: str | None = None,
        tensor_parallel_size: int = 1,
    ) -> BlockShape:
        """Reads a model's ``config.json`` (the file, or the directory that holds it).

        ``dtype`` is the KV cache's, if it is not the model's own. Raises ``OSError`` when there is no such file and
        ``ValueError`` when it does not describe an attention model.
        """
        file = Path(path)
        file = file / "config.json" if file.is_dir() else file
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{file} is not JSON: {error}") from None
        if not isinstance(config, dict):
            raise ValueError(f"{file} does not hold a JSON object")
        nested = config.get("text_config")  # of a model that also sees or hears
        text: dict[str, Any] = nested if isinstance(nested, dict) else config
        try:
            layers, heads, head_size, tensors = _attention(text)
        except KeyError as error:
            raise ValueError(f"{file} has no {error.args[0]!r}: not the configuration of an attention model") from None
        found = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
        return cls(
            layers=layers,
            kv_heads=_of_one_rank(heads, tensor_parallel_size, tensors),
            head_size=head_size,
            dtype=dtype or str(found or "bfloat16").removeprefix("torch."),
            block_size=block_size,
            tensors=tensors,
        )


def _attention(config: dict[str, Any]) -> tuple[int, int, int, int]:
    """Returns layers, KV heads, head size and tensors a token; raises ``KeyError`` for what is missing."""
    layers = config["num_hidden_layers"]
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        layers = sum(kind not in _WITHOUT_KV for kind in kinds)
    if config.get("kv_lora_rank"):
        return layers, 1, config["kv_lora_rank"] + config["qk_rope_head_dim"], 1
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    return layers, config.get("num_key_value_heads") or heads, head_size, 2


def _of_one_rank(heads: int, tensor_parallel_size: int, tensors: int) -> int:
    """Returns the KV heads of one rank; with more ranks than heads each rank keeps a copy of one."""
    if tensor_parallel_size < 1:
        raise ValueError(f"the tensor parallel size must be at least 1, not {tensor_parallel_size}")
    return heads if tensors == 1 else max(1, heads // tensor_parallel_size)
