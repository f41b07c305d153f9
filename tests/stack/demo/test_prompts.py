from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stack.demo.prompts import MAX_TOKENS, MIN_TOKENS, Prompt, demo_prompts, interleaved, length_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory with a real tokenizer, one token a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_prompts_have_the_length_they_say(model: Path) -> None:
    prompts = demo_prompts(model, 12)
    assert [len(prompt.text.split()) for prompt in prompts] == [prompt.tokens for prompt in prompts]


def test_prompts_differ_and_are_the_same_every_time(model: Path) -> None:
    prompts = demo_prompts(model, 12)
    assert len({prompt.text for prompt in prompts}) == 12
    assert demo_prompts(model, 12) == prompts


def test_more_prompts_than_there_are_texts_is_an_error(model: Path) -> None:
    with pytest.raises(ValueError, match="100000 are wanted"):
        demo_prompts(model, 100_000)


@pytest.mark.parametrize("count", [2, 3, 12])
def test_lengths_span_the_range(count: int) -> None:
    lengths = [length_of(index, count) for index in range(count)]
    assert (min(lengths), max(lengths)) == (MIN_TOKENS, MAX_TOKENS)
    assert len(set(lengths)) == count


def test_a_single_prompt_has_a_length() -> None:
    assert length_of(0, 1) == MIN_TOKENS


def test_modes_alternate_as_abba() -> None:
    prompts = [Prompt(index, 64, str(index)) for index in range(4)]
    order = interleaved(prompts, ("push", "pull"))
    assert [mode for mode, _ in order] == ["push", "pull", "pull", "push"] * 2
    assert Counter(prompt.index for _, prompt in order) == dict.fromkeys(range(4), 2)
    assert {(mode, prompt.index) for mode, prompt in order} == {(m, i) for m in ("push", "pull") for i in range(4)}
