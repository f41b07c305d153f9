"""Prompts: the same for both blocks of a pair, of the wanted length, and files that cannot be used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.experiment.plan import Changes, PromptsFile, make_plan
from stack.experiment.presets import DEMO, REUSE
from stack.experiment.prompts import (
    Line,
    PromptsError,
    PromptSource,
    measured_ratio,
    natural_text,
    read_prompts,
    window,
)

PLAN = make_plan(DEMO, Changes(requests=3))


def prompts_of(source, pair, arm=0):
    (block,) = [b for b in PLAN.blocks if (b.pair, b.arm) == (pair, arm)]
    return source.prompts(block, PLAN.cells[0])


def test_both_blocks_of_a_pair_get_the_same_prompts_and_other_pairs_others():
    source = PromptSource()
    assert prompts_of(source, 0, 0) == prompts_of(source, 0, 1)
    texts = [prompt.text for pair in range(8) for prompt in prompts_of(source, pair)]
    assert len({text[:20] for text in texts}) == len(texts)


def test_the_length_follows_the_measured_ratio():
    assert {len(p.text) for p in prompts_of(PromptSource(characters_a_token=3.5), 0)} == {448}


@given(st.integers(0, 2**53), st.integers(1, 3_000_000))
def test_a_window_has_its_length_however_long(seed, characters):
    assert len(window(seed, characters)) == characters


def test_a_window_starts_at_a_word():
    text = natural_text()
    for seed in range(50):
        found = window(seed, 60)
        assert text.startswith(found) or f" {found}" in text + text[:60]


@pytest.mark.parametrize(
    ("characters", "tokens", "ratio"), [(1200, 300, 4.0), (1200, 7, 12.0), (1200, 0, 12.0), (5, 50, 1)]
)
def test_a_ratio_that_cannot_be_a_tokenizers_is_bounded(characters, tokens, ratio):
    assert measured_ratio(characters, tokens) == ratio


def test_a_files_lines_are_taken_in_turn_and_again_from_the_start(jsonl):
    file, lines = read_prompts(
        jsonl({"prompt": "a"}, {"prompt": "b", "output_tokens": 9}, {"prompt": "c"}, {"prompt": "d"})
    )
    assert (file.name, file.count, len(file.sha256)) == ("prompts.jsonl", 4, 64)
    source = PromptSource(tuple(lines))
    assert [(p.number, p.text, p.output_tokens) for p in prompts_of(source, 0)] == [
        (0, "a", 12),
        (1, "b", 9),
        (2, "c", 12),
    ]
    assert [p.text for p in prompts_of(source, 1)] == ["d", "a", "b"]
    assert [p.text for p in prompts_of(source, 1, 1)] == ["d", "a", "b"]


def test_empty_lines_are_no_prompts(jsonl):
    path = jsonl({"prompt": "a"})
    path.write_text("\n" + path.read_text() + "\n\n")
    assert read_prompts(path)[1] == [Line("a")]


def test_a_file_without_prompts(tmp_path):
    path = tmp_path / "empty.jsonl"
    path.write_text("\n \n")
    with pytest.raises(PromptsError, match="has no prompts"):
        read_prompts(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(PromptsError, match="No such file"):
        read_prompts(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("text", ":1: not a JSON object"),
        ({"text": "a"}, 'with a "prompt"'),
        ({"prompt": ""}, "must be text"),
        ({"prompt": 5}, "must be text"),
        ({"prompt": "a", "output_tokens": 0}, "at least 1"),
        ({"prompt": "a", "output_tokens": True}, "at least 1"),
        ({"prompt": "a", "output_tokens": "8"}, "at least 1"),
    ],
)
def test_lines_that_are_no_prompts(jsonl, document, problem):
    with pytest.raises(PromptsError, match=problem):
        read_prompts(jsonl(document))


def test_the_plan_knows_a_file_by_its_content(jsonl):
    one, _ = read_prompts(jsonl({"prompt": "a"}))
    two, _ = read_prompts(jsonl({"prompt": "b"}))
    assert make_plan(DEMO, Changes(prompts=one)) != make_plan(DEMO, Changes(prompts=two))
    assert isinstance(make_plan(DEMO, Changes(prompts=one)).prompts, PromptsFile)


def test_a_conversation_brings_new_text_every_turn_and_each_turn_ends_with_its_number():
    plan = make_plan(REUSE, Changes(turns=4, requests=2))
    (cell,) = plan.cells
    first, second = PromptSource((), 4.0).prompts(plan.blocks[-1], cell)
    assert len(first.later) == 3
    assert [text.rsplit("\n", 1)[1] for text in (first.text, *first.later)] == [f"Turn {n}" for n in (1, 2, 3, 4)]
    assert len(first.text) == pytest.approx(4 * cell.input_tokens, abs=8)
    assert all(len(text) == pytest.approx(4 * cell.new_tokens, abs=9) for text in first.later)
    assert len({first.text, second.text, *first.later, *second.later}) == 8


def test_both_blocks_of_a_pair_hold_the_same_conversations():
    plan = make_plan(REUSE)
    pair = [block for block in plan.blocks if block.pair == 3]
    one, two = (PromptSource().prompts(block, plan.cells[0]) for block in pair)
    assert one == two
