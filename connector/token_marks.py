"""Marks in a sequence of tokens: how P recognises, without D's tokens, how much of D's KV belongs to its own prompt.

A mark is ``[tokens, digest]``: the first ``tokens`` token ids have this SHA-256 (its first 16 hexadecimal digits; ids
as little-endian unsigned 32-bit integers). D makes marks of what it keeps, P checks them against its prompt. Pure.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

DIGEST_DIGITS = 16
MAX_MARKS = 8  # that are looked at; D makes four
MERGING_TOKENS = 8  # at the end of a text: once more text follows, the tokenizer may make others of them


def ends_of(prompt_tokens: int, tokens: int) -> tuple[int, ...]:
    """Where D puts marks, tokens: at the ends of the prompt and of what it keeps, and shortly before either."""
    return (prompt_tokens - MERGING_TOKENS, prompt_tokens, tokens - MERGING_TOKENS, tokens)


def marks_of(token_ids: Sequence[int], ends: Iterable[int]) -> list[list[Any]]:
    """Returns a mark at each of ``ends`` that lies within ``token_ids`` and above 0, ascending."""
    wanted = sorted({end for end in ends if 0 < end <= len(token_ids)})
    marks: list[list[Any]] = []
    hasher, done = hashlib.sha256(), 0
    for end in wanted:
        hasher.update(_packed(token_ids[done:end]))
        marks.append([end, hasher.hexdigest()[:DIGEST_DIGITS]])
        done = end
    return marks


def matching_tokens(marks: Any, token_ids: Sequence[int], limit: int) -> int:
    """Returns the tokens of the largest mark that ``token_ids`` begin with, 0 if none.

    ``marks`` is what came from outside: whatever is not a mark, or lies beyond ``limit`` tokens, does not match.
    """
    if not isinstance(marks, list):
        return 0
    known = {
        mark[0]: mark[1]
        for mark in marks[:MAX_MARKS]
        if isinstance(mark, list) and len(mark) == 2 and type(mark[0]) is int and mark[0] <= limit
    }
    own = marks_of(token_ids, known)
    return max((tokens for tokens, digest in own if known[tokens] == digest), default=0)


def _packed(token_ids: Sequence[int]) -> bytes:
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
