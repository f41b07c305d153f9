"""What an experiment will do, exactly, before it does anything: cells, blocks in ABBA order, seeds. Pure.

A *cell* is one offered load: a rate, an input and an output length. Each cell begins with warm-up blocks (handshakes,
first allocations of that shape), which count for nothing, and goes on with *pairs* of blocks, one of each arm. The
order turns round from pair to pair (AB BA AB BA), so that what drifts falls on both arms alike. The two blocks of a
pair have the same prompts and the same arrivals: their seeds are those of the pair, not of the block.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, product
from typing import Any

from connector import names
from stack.experiment.presets import Preset

PLAN_SCHEMA = "kvpath.experiment/1"
WARM_UP = -1  # the pair number of warm-up blocks
MAX_BLOCKS = 1000


class PlanError(ValueError):
    """The experiment that was asked for makes no sense; one line for the user."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One offered load. ``input_tokens`` is ``None`` when prompts come from a file; ``requests`` are a block's.

    What is due in a block's first ``lead_in_s`` seconds finds idle engines, and counts for nothing.

    With several ``turns`` what arrives are conversations, and ``requests`` is their number. ``input_tokens`` are those
    of the first prompt; each further turn goes on from the answer before with ``new_tokens``, ``gap_s`` later.
    """

    rate: float
    input_tokens: int | None
    output_tokens: int
    requests: int
    lead_in_s: float = 0.0
    turns: int = 1
    new_tokens: int = 0
    gap_s: float = 0.0

    @property
    def longest_input(self) -> int | None:
        """Tokens of the last turn's prompt."""
        grown = (self.turns - 1) * (self.output_tokens + self.new_tokens)
        return None if self.input_tokens is None else self.input_tokens + grown

    @property
    def overlap(self) -> tuple[float, float]:
        """The share of a prompt that the turn before had already, prompt or answer: in the second and the last turn."""
        first = self.input_tokens or 0
        kept = [first + n * self.output_tokens + (n - 1) * self.new_tokens for n in (1, self.turns - 1)]
        return kept[0] / (kept[0] + self.new_tokens), kept[1] / (kept[1] + self.new_tokens)

    def __str__(self) -> str:
        if self.turns > 1:
            return (
                f"{self.rate:g} conversations/s of {self.turns} turns, {self.input_tokens} tokens of context, "
                f"{self.new_tokens} new a turn, {self.gap_s:g} s between turns, {self.output_tokens} out"
            )
        given = "prompts of the file" if self.input_tokens is None else f"about {self.input_tokens} tokens in"
        return f"{self.rate:g} req/s, {given}, {self.output_tokens} out"


@dataclass(frozen=True, slots=True)
class Block:
    """One stretch of requests of one arm (0 or 1). ``seed`` gives prompts and arrivals, equal within a pair.

    Conversations begin and end within their block.
    """

    index: int
    cell: int
    pair: int
    arm: int
    mode: str
    requests: int
    seed: int

    @property
    def warm_up(self) -> bool:
        return self.pair == WARM_UP


@dataclass(frozen=True, slots=True)
class PromptsFile:
    """The file that prompts come from, by what is in it."""

    name: str
    sha256: str
    count: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides what is sent. Two equal plans send the same requests in the same order."""

    preset: str
    modes: tuple[str, str]
    cells: tuple[Cell, ...]
    blocks: tuple[Block, ...]
    blocks_an_arm: int
    seed: int
    prompts: PromptsFile | None = None
    prefill_cache: str = ""  # of the engines: "on" or "off" where it is known

    @property
    def conversations(self) -> bool:
        return any(cell.turns > 1 for cell in self.cells)

    @property
    def arms(self) -> tuple[str, str]:
        """What the two arms are called: their modes, with a letter when these are the same."""
        first, second = self.modes
        return (first, second) if first != second else (f"{first} A", f"{second} B")

    @property
    def seconds(self) -> float:
        """How long the arrivals take, without the time that the last answers of a block take."""
        cells = [self.cells[block.cell] for block in self.blocks]
        arrivals = sum(block.requests / cell.rate for block, cell in zip(self.blocks, cells, strict=True))
        return arrivals + sum((cell.turns - 1) * cell.gap_s for cell in cells)

    def document(self) -> dict[str, Any]:
        """Returns the plan as it stands in ``plan.json``."""
        return {"schema": PLAN_SCHEMA, **json.loads(json.dumps(asdict(self)))}


@dataclass(frozen=True, slots=True)
class Changes:
    """What replaces a preset's figures; ``None`` leaves them."""

    modes: tuple[str, str] | None = None
    rates: tuple[float, ...] | None = None
    input_tokens: tuple[int, ...] | None = None
    output_tokens: int | None = None
    requests: int | None = None
    blocks: int | None = None
    seed: int | None = None
    prompts: PromptsFile | None = None
    turns: int | None = None
    new_tokens: int | None = None
    gap_s: float | None = None
    prefill_cache: str = ""


def make_plan(preset: Preset, changes: Changes = Changes()) -> Plan:
    """Raises :class:`PlanError` for figures that cannot be."""
    chosen = _changed(preset, changes)
    lengths: Sequence[int | None] = changes.input_tokens or preset.input_tokens
    if changes.prompts is not None:
        if changes.input_tokens is not None:
            raise PlanError("--input-tokens and --prompts exclude each other: a file's prompts have their own lengths")
        lengths = (None,)
    for rate in chosen.rates:
        if not 0 < rate < 1e6:
            raise PlanError(f"a rate must be a positive number of requests/s, got {rate:g}")
    if chosen.loads and not (changes.rates or changes.input_tokens or changes.requests or changes.prompts):
        cells = tuple(Cell(load.rate, load.input_tokens, chosen.output_tokens, load.requests) for load in chosen.loads)
    else:
        cells = tuple(
            Cell(rate, length, chosen.output_tokens, *_length(chosen, rate, changes.requests))
            for length, rate in product(lengths, chosen.rates)
        )
    if chosen.turns > 1:
        cells = tuple(
            replace(cell, turns=chosen.turns, new_tokens=chosen.new_tokens, gap_s=chosen.gap_s) for cell in cells
        )
    _check(chosen, cells)
    _check_turns(chosen, changes)
    seed = 1 if changes.seed is None else changes.seed
    blocks: list[Block] = []
    for number, cell in enumerate(cells):
        blocks += _blocks_of(number, cell, chosen, seed, len(blocks))
    return Plan(
        preset.name, chosen.modes, cells, tuple(blocks), chosen.blocks, seed, changes.prompts, changes.prefill_cache
    )


_REPLACED = ("modes", "rates", "output_tokens", "blocks", "turns", "new_tokens", "gap_s")


def _changed(preset: Preset, changes: Changes) -> Preset:
    given = {name: value for name in _REPLACED if (value := getattr(changes, name)) is not None and value != ()}
    return replace(preset, **given)


def _length(preset: Preset, rate: float, requests: int | None) -> tuple[int, float]:
    """Returns a block's requests and its lead-in; a number that was asked for is short or long on purpose."""
    if requests is not None:
        return requests, 0.0
    return max(preset.requests, round(preset.block_s * rate)), preset.lead_in_s


def _check(preset: Preset, cells: Sequence[Cell]) -> None:
    if not 1 <= preset.blocks <= MAX_BLOCKS:
        raise PlanError(f"--blocks must be 1 to {MAX_BLOCKS}, got {preset.blocks}")
    for cell in cells:
        if cell.input_tokens is not None and cell.input_tokens < 1:
            raise PlanError(f"an input length must be at least 1 token, got {cell.input_tokens}")
        if cell.output_tokens < 1 or cell.requests < 1:
            raise PlanError("--output-tokens and --requests must be at least 1")


def _check_turns(chosen: Preset, changes: Changes) -> None:
    """Reuse needs conversations, and is held against pull alone: push hides something else."""
    if chosen.turns < 1 or chosen.new_tokens < 0 or chosen.gap_s < 0:
        raise PlanError("--turns must be at least 1, --new-tokens and --gap at least 0")
    if chosen.turns == 1:
        if names.MODE_REUSE in chosen.modes:
            raise PlanError("reuse is about a conversation's next turn: ask for several --turns, or --preset reuse")
        return
    if names.MODE_PUSH in chosen.modes:
        raise PlanError("conversations compare reuse with pull; push has presets of its own, of single requests")
    if changes.prompts is not None:
        raise PlanError("conversations make their own prompts: --prompts does not go with several turns")
    if not chosen.new_tokens:
        raise PlanError("a turn must bring something new: --new-tokens must be at least 1")


def _blocks_of(cell: int, load: Cell, preset: Preset, seed: int, first: int) -> list[Block]:
    warm_up = [(WARM_UP, arm) for arm in (0, 1)] if preset.warm_up else []
    order = [(pair, arm) for pair in range(preset.blocks) for arm in ((0, 1) if pair % 2 == 0 else (1, 0))]
    return [
        Block(
            index=first + position,
            cell=cell,
            pair=pair,
            arm=arm,
            mode=preset.modes[arm],
            requests=preset.warm_up if pair == WARM_UP else load.requests,
            seed=derived_seed(seed, cell, pair),
        )
        for position, (pair, arm) in enumerate([*warm_up, *order])
    ]


def derived_seed(*parts: int) -> int:
    """Returns a seed of 53 bits (exact in JSON everywhere) that depends on every part."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 11


def arrivals_ns(block: Block, rate: float) -> list[int]:
    """Returns when each request of the block is due, in nanoseconds after the first: a Poisson process."""
    random_ = random.Random(derived_seed(block.seed, 0))
    gaps = [0.0, *(random_.expovariate(rate) for _ in range(block.requests - 1))]
    return [round(at * 1e9) for at in accumulate(gaps)]


def plan_from(document: Mapping[str, Any]) -> Plan:
    """Reads what :meth:`Plan.document` wrote; raises :class:`PlanError` when it is something else."""
    try:
        given = {key: value for key, value in document.items() if key != "schema"}
        file = given.pop("prompts")
        return Plan(
            **given
            | {
                "modes": tuple(given["modes"]),
                "cells": tuple(Cell(**cell) for cell in given["cells"]),
                "blocks": tuple(Block(**block) for block in given["blocks"]),
                "prompts": None if file is None else PromptsFile(**file),
            }
        )
    except (KeyError, TypeError) as error:
        raise PlanError(f"not a plan of this version ({error})") from None
