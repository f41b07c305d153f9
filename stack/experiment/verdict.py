"""What a cell of an experiment means: transport or protocol, which arm is faster, why, and at what price. Pure.

Whether the arms differ is decided by the median of TTFT, which one slow request cannot move: its interval over blocks
leaves out 0, *and* the paired test agrees. On recorded A/A runs either alone is wrong about once in twenty times.
The causes are then given for the difference of the means, because only means add up (:mod:`stack.experiment.split`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stack.experiment.link import Link
from stack.experiment.saving import Saving
from stack.experiment.sentences import (
    median_sentence,
    price_sentences,
    saving_sentences,
    split_sentences,
    transport_sentences,
)
from stack.experiment.split import Price, Split
from stack.experiment.statistics import CONFIDENCE, MEAN, MEDIAN, Compared, PairedTest

TRANSPORT, FASTER, NO_DIFFERENCE, TOO_FEW, NO_DATA = "transport", "faster", "no_difference", "too_few_blocks", "no_data"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``kind``: transport, faster, no_difference, too_few_blocks or no_data. ``sentences`` begin with the headline."""

    kind: str
    faster: str | None
    sentences: tuple[str, ...]
    split: Split | None
    link: Link
    price: Price | None = None
    notes: tuple[str, ...] = ()
    saving: Saving | None = None

    @property
    def headline(self) -> str:
        return self.sentences[0]

    def document(self) -> dict[str, Any]:
        return {"about_transport": self.kind == TRANSPORT, **asdict(self)}


def conclude(
    arms: tuple[str, str],
    ttft: Mapping[str, Compared],
    paired: PairedTest | None,
    split: Split | None,
    link: Link,
    pairs: int,
    price: Price | None = None,
    notes: Sequence[str] = (),
    saving: Saving | None = None,
) -> Verdict:
    """``ttft`` has every statistic of TTFT; ``link`` is without reasons when both arms move KV the same way."""
    transport = transport_sentences(link)
    if not ttft:
        text = "There is nothing to compare: an arm has no request that counts."
        return Verdict(NO_DATA, None, (text, *transport), split, link, price, tuple(notes), saving)
    differs = arms_differ(ttft, paired)
    sentences = [*transport, median_sentence(arms, ttft[MEDIAN], differs, pairs)]
    kind, faster = NO_DIFFERENCE, None
    if link.reasons:
        kind = TRANSPORT
    elif differs is None:
        kind = TOO_FEW
    elif differs:
        kind, faster = FASTER, arms[1] if ttft[MEDIAN].difference.value > 0 else arms[0]
    if split is not None:
        sentences += split_sentences(arms, split, ttft[MEAN], differs)
    if price is not None:
        sentences += price_sentences(arms, price)
    if saving is not None:
        sentences += saving_sentences(saving)
    return Verdict(kind, faster, tuple(sentences), split, link, price, tuple(notes), saving)


def arms_differ(ttft: Mapping[str, Compared], paired: PairedTest | None) -> bool | None:
    """``None``: too few pairs of blocks to say."""
    differs = ttft[MEDIAN].differs
    return differs and (paired is None or paired.p < 1 - CONFIDENCE)
