from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.token_marks import MERGING_TOKENS, ends_of, marks_of, matching_tokens

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=200)


def test_a_mark_is_a_digest_of_little_endian_unsigned_words() -> None:
    ids = [1, 2**31, 70_000]
    digest = hashlib.sha256(struct.pack("<3I", *ids)).hexdigest()[:16]
    assert marks_of([*ids, 9], [3]) == [[3, digest]]


def test_marks_ascend_are_distinct_and_lie_within_the_tokens() -> None:
    assert [tokens for tokens, _ in marks_of(range(10), [7, 3, 7, 0, -1, 11, 10])] == [3, 7, 10]
    assert marks_of([], [0, 1]) == []


@given(TOKENS, TOKENS, st.data())
def test_the_largest_mark_of_a_common_start_matches(common: list[int], rest: list[int], data: st.DataObject) -> None:
    ends = data.draw(st.lists(st.integers(0, len(common) + len(rest)), max_size=4))
    marks = marks_of([*common, *rest], ends)
    other = [*common, *([rest[0] ^ 1] if rest else [])]
    within = [end for end in ends if 0 < end <= len(common)]
    assert matching_tokens(marks, other, len(common) + len(rest)) == max(within, default=0)


def test_a_mark_beyond_what_is_offered_does_not_count() -> None:
    marks = marks_of(range(10), [4, 10])
    assert matching_tokens(marks, range(10), 9) == 4
    assert matching_tokens(marks, range(9), 10) == 4, "the prompt is shorter"


@pytest.mark.parametrize(
    "marks",
    [None, 7, "x", {}, [], [[]], [[4]], [["4", "x"]], [[4, 7]], [[4, None]], [[True, "x"]], [[-4, "x"]], [[4, "x", 1]]],
)
def test_what_is_not_a_mark_does_not_match(marks: Any) -> None:
    assert matching_tokens(marks, range(10), 10) == 0


def test_only_so_many_marks_are_looked_at() -> None:
    many = marks_of(range(100), range(1, 101))
    assert matching_tokens(many, range(100), 100) == 8


def test_a_text_whose_last_tokens_merge_with_what_follows_is_still_known_up_to_them():
    """A prompt that ended with one token for ":" goes on with one for ":" and a line break together."""
    prompt, answer = list(range(100)), list(range(500, 520))
    marks = marks_of([*prompt, *answer], ends_of(len(prompt), len(prompt) + len(answer)))
    assert matching_tokens(marks, [*prompt[:-1], 1234, *answer], 120) == 100 - MERGING_TOKENS
    assert matching_tokens(marks, [*prompt, *answer[:5], 1234, 10, 11], 120) == 100
    assert matching_tokens(marks, [*prompt, *answer[:-1], 1234, 10, 11], 120) == 120 - MERGING_TOKENS
    assert matching_tokens(marks, [*prompt, *answer, 10], 120) == 120
    assert marks_of(range(5), ends_of(4, 5)) == marks_of(range(5), [4, 5])
