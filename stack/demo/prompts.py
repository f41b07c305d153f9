"""Prompts of natural English text that every Python has, cut to known lengths, and the order they are sent in."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

MIN_TOKENS, MAX_TOKENS = 64, 256


@dataclass(frozen=True, slots=True)
class Prompt:
    """``tokens`` is the length that was aimed at; the engine's own count may differ by one at the cut."""

    index: int
    tokens: int
    text: str


def demo_prompts(model: Path, count: int) -> list[Prompt]:
    """Returns ``count`` different prompts of 64 to 256 tokens of the model in directory ``model``."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    prompts: list[Prompt] = []
    for text in _long_texts():
        if len(prompts) == count:
            return prompts
        wanted = length_of(len(prompts), count)
        offsets = tokenizer.encode(text, add_special_tokens=False).offsets
        if len(offsets) > wanted:
            prompts.append(Prompt(len(prompts), wanted, text[: offsets[wanted - 1][1]]))
    raise ValueError(f"pydoc_data.topics has only {len(prompts)} texts of {MAX_TOKENS} tokens, {count} are wanted")


def length_of(index: int, count: int) -> int:
    """Spreads lengths evenly over the range, short and long ones in turn rather than ever longer."""
    rank = index // 2 if index % 2 == 0 else count - 1 - index // 2
    return MIN_TOKENS + (MAX_TOKENS - MIN_TOKENS) * rank // max(1, count - 1)


def _long_texts() -> Iterator[str]:
    for name in sorted(topics):
        text = " ".join(textwrap.dedent(topics[name]).split())
        if len(text) > 6 * MAX_TOKENS:
            yield text


def interleaved(prompts: Sequence[Prompt], modes: tuple[str, ...]) -> list[tuple[str, Prompt]]:
    """Returns every prompt in every mode, the order of the modes turned round from prompt to prompt (ABBA).

    What drifts (a warming cache, a busy neighbour) then falls on the modes alike.
    """
    order: list[tuple[str, Prompt]] = []
    for prompt in prompts:
        turned = modes if prompt.index % 2 == 0 else modes[::-1]
        order += [(mode, prompt) for mode in turned]
    return order
