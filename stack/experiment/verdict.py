"""What a cell of an experiment means: transport or protocol, which arm is faster, why, and at what price. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stack.experiment.link import Link
from stack.experiment.sentences import price_sentences, split_sentences, transport_sentences, ttft_sentence
from stack.experiment.split import Price, Split
from stack.experiment.statistics import MIN_PAIRS, Compared

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

    @property
    def headline(self) -> str:
        return self.sentences[0]

    def document(self) -> dict[str, Any]:
        return {"about_transport": self.kind == TRANSPORT, **asdict(self)}


def conclude(
    arms: tuple[str, str],
    ttft: Compared | None,
    split: Split | None,
    link: Link,
    pairs: int,
    price: Price | None = None,
    notes: Sequence[str] = (),
) -> Verdict:
    """``ttft`` compares the arms' mean TTFT; ``link`` without reasons when both arms move KV the same way."""
    if ttft is None:
        text = "There is nothing to compare: an arm has no request that counts."
        return Verdict(NO_DATA, None, (text, *transport_sentences(link)), split, link, price, tuple(notes))
    sentences = [ttft_sentence(arms, ttft, pairs)]
    faster = None
    if ttft.differs is None:
        kind = TOO_FEW
    elif ttft.differs:
        kind, faster = FASTER, arms[0] if ttft.difference.value > 0 else arms[1]
    else:
        kind = NO_DIFFERENCE
    if link.reasons:
        kind, faster = TRANSPORT, None
        sentences = [*transport_sentences(link), *sentences]
    if split is not None:
        sentences += split_sentences(arms, split, ttft.differs, pairs >= MIN_PAIRS)
    if price is not None:
        sentences += price_sentences(arms, price)
    return Verdict(kind, faster, tuple(sentences), split, link, price, tuple(notes))
