"""The prompts of an experiment: windows of natural English text that every Python has, or the lines of a file.

A window starts at a word that the pair's seed chooses, so two prompts do not begin alike. Its length is aimed at in
characters, by a ratio that a first request measures on the model itself (no tokenizer is needed); each request's own
token count is what the engine reports, and both arms get the very same text.
"""

from __future__ import annotations

import hashlib
import json
import random
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

from stack.experiment.plan import Block, Cell, PromptsFile, derived_seed

SAMPLE_CHARACTERS = 1200  # of the request that measures characters a token
_RATIO_BOUNDS = (1.0, 12.0)  # characters a token; beyond, what counted tokens was no tokenizer


class PromptsError(ValueError):
    """A prompts file that cannot be used; one line for the user."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """``number`` names the prompt within its file, or within its pair of blocks.

    ``later``: what each further turn of a conversation says after the answer before.
    """

    number: int
    text: str
    output_tokens: int
    later: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a prompts file; without ``output_tokens`` the plan's count holds."""

    text: str
    output_tokens: int | None = None


def read_prompts(path: Path) -> tuple[PromptsFile, list[Line]]:
    """Reads JSONL of ``{"prompt": "...", "output_tokens": 128}``; raises :class:`PromptsError`."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise PromptsError(f"cannot read {path}: {error.strerror or error}") from None
    lines = [_line(path, number, text) for number, text in enumerate(raw.split(b"\n"), 1) if text.strip()]
    if not lines:
        raise PromptsError(f'{path} has no prompts; each line must look like {{"prompt": "text"}}')
    return PromptsFile(path.name, hashlib.sha256(raw).hexdigest(), len(lines)), lines


def _line(path: Path, number: int, raw: bytes) -> Line:
    try:
        found = json.loads(raw)
        text, tokens = found["prompt"], found.get("output_tokens")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PromptsError(f'{path}:{number}: not a JSON object with a "prompt"') from None
    if not isinstance(text, str) or not text:
        raise PromptsError(f'{path}:{number}: "prompt" must be text that is not empty')
    if tokens is not None and (type(tokens) is not int or tokens < 1):
        raise PromptsError(f'{path}:{number}: "output_tokens" must be a whole number of at least 1')
    return Line(text, tokens)


@dataclass(frozen=True, slots=True)
class PromptSource:
    """Where the prompts of a run come from: ``lines`` of a file, else windows of natural text."""

    lines: tuple[Line, ...] = ()
    characters_a_token: float = 4.0

    def prompts(self, block: Block, cell: Cell) -> list[Prompt]:
        """Returns the prompts of a block, the same for both blocks of a pair."""
        if self.lines:
            first = max(block.pair, 0) * cell.requests
            numbers = [(first + i) % len(self.lines) for i in range(block.requests)]
            return [Prompt(n, self.lines[n].text, self.lines[n].output_tokens or cell.output_tokens) for n in numbers]
        assert cell.input_tokens is not None
        characters = max(1, round(cell.input_tokens * self.characters_a_token))
        if cell.turns > 1:
            return [self._conversation(block.seed, number, characters, cell) for number in range(block.requests)]
        return [
            Prompt(number, window(derived_seed(block.seed, 1, number), characters), cell.output_tokens)
            for number in range(block.requests)
        ]

    def _conversation(self, seed: int, number: int, characters: int, cell: Cell) -> Prompt:
        """Every turn ends with its number: a digit is a token of its own, whatever the model answers after it.

        Were it otherwise, the last token of a turn would become another one when the answer is appended, and P would
        rightly refuse what D kept.
        """
        new = max(1, round(cell.new_tokens * self.characters_a_token))
        said = [window(derived_seed(seed, 1, number), characters)]
        said += [window(derived_seed(seed, 1, number, turn), new) for turn in range(2, cell.turns + 1)]
        ended = [f"{text}\nTurn {turn}" for turn, text in enumerate(said, 1)]
        return Prompt(number, ended[0], cell.output_tokens, tuple(f"\n{text}" for text in ended[1:]))


def measured_ratio(characters: int, tokens: int) -> float:
    """Returns characters a token of a text that the engine counted."""
    low, high = _RATIO_BOUNDS
    return min(max(characters / max(tokens, 1), low), high)


def window(seed: int, characters: int) -> str:
    """Returns that much text from a word that ``seed`` chooses; it wraps round at the end."""
    text = natural_text()
    at = random.Random(seed).randrange(len(text))
    start = text.find(" ", at) + 1
    pieces: list[str] = []
    missing = characters
    while missing > 0:
        piece = text[start : start + missing]
        pieces.append(piece)
        missing -= len(piece)
        start = 0
    return "".join(pieces)


@cache
def natural_text() -> str:
    """Python's own help topics as one line of prose."""
    return " ".join(_paragraphs()) + " "


def _paragraphs() -> Iterator[str]:
    for name in sorted(topics):
        yield " ".join(textwrap.dedent(topics[name]).split())
