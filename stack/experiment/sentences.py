"""The verdict in words. Every sentence carries its numbers; none says more than they do. Pure."""

from __future__ import annotations

from connector import names
from stack.analysis.terminal import milliseconds
from stack.experiment.link import Link
from stack.experiment.presets import PREFILL_CACHE_OFF, PREFILL_CACHE_ON
from stack.experiment.saving import Saving
from stack.experiment.split import PREFILL, REST, TAKING_BACK, Part, Price, Split
from stack.experiment.statistics import CONFIDENCE, MIN_PAIRS, Compared

_WHAT = {
    "coordination": "coordination between router, P and D",
    "transfer": "the transfer over the link",
    "submission": "preparing and posting the transfer",
    "queueing": "queueing on P",
    PREFILL: "computing the prompt on P",
    TAKING_BACK: "taking back to P what D kept",
    REST: "everything else",
}
_NAMED_SHARE = 0.2  # a stage of a part is named when it makes up at least this share of it


def transport_sentences(link: Link) -> list[str]:
    """Comes first where the comparison is about the transport; empty elsewhere."""
    if not link.reasons:
        return []
    return [
        f"This comparison is about the transport, not about push and pull: {'; '.join(link.reasons)}.",
        "A difference below says how fast this link is each way. It would be another on another link.",
    ]


def median_sentence(arms: tuple[str, str], median: Compared, differs: bool | None, pairs: int) -> str:
    medians = f"median TTFT {_ms(median.first)} ms {arms[0]}, {_ms(median.second)} ms {arms[1]}"
    difference = median.difference
    if differs is None:
        return f"Too few blocks to tell: {medians}; {pairs} pairs of blocks, {MIN_PAIRS} are needed for an interval."
    if not differs:
        less = f"{arms[0]} minus {arms[1]} is {_ms(difference.value)} ms"
        return f"No difference: {medians}; {less} ({_inside(difference.low, difference.high)})."
    slower, quicker = arms if difference.value > 0 else (arms[1], arms[0])
    ends = sorted(abs(end or 0.0) for end in (difference.low, difference.high))
    return (
        f"The first token takes {_ms(abs(difference.value))} ms longer with {slower} than with {quicker} "
        f"({medians}; {_inside(*ends)})."
    )


def split_sentences(arms: tuple[str, str], split: Split, mean: Compared, differs: bool | None) -> list[str]:
    """The difference of the means and its causes: largest first, the unnamed rest last; then what is within noise."""
    d = mean.difference
    opening = f"The means, {arms[0]} minus {arms[1]}, differ by {_ms(split.difference_ns)} ms"
    if mean.differs is not None:
        opening += f" ({_inside(d.low, d.high)})"
        if mean.differs and not differs:
            opening += "; the medians do not, so a few slow requests make it"
    ordered = sorted(split.parts, key=lambda part: (part.name == REST, -abs(part.difference_ns)))
    telling = [part for part in ordered if part.differs] if mean.differs is not None else ordered[:1]
    quiet = [part for part in ordered if part not in telling] if mean.differs is not None else []
    sentences = [opening + (": " + "; ".join(_part(arms, part) for part in telling) if telling else "") + "."]
    if telling:
        largest = max(telling, key=lambda part: abs(part.difference_ns))
        sentences.append(f"The largest part is {largest.name}, mainly {_main_stage(largest)}.")
    if quiet:
        sentences.append("No difference in " + "; ".join(f"{_WHAT[p.name]} ({_signed(p)})" for p in quiet) + ".")
    return sentences


def _inside(low: float | None, high: float | None) -> str:
    return f"{CONFIDENCE:.0%} interval {_ms(low)} to {_ms(high)} ms"


def _part(arms: tuple[str, str], part: Part) -> str:
    slower = arms[0] if part.difference_ns > 0 else arms[1]
    stages = ", ".join(
        f"{stage} {milliseconds(ns)}"
        for stage, ns in sorted(part.stages.items(), key=lambda item: -abs(item[1]))
        if abs(ns) >= _NAMED_SHARE * max(abs(part.difference_ns), 1)
    )
    return f"{slower} spends {_ms(abs(part.difference_ns))} ms more on {_WHAT[part.name]} ({stages})"


def _main_stage(part: Part) -> str:
    return max(part.stages, key=lambda stage: abs(part.stages[stage]))


def _signed(part: Part) -> str:
    if part.low_ns is None or part.high_ns is None:
        return f"{_ms(part.difference_ns)} ms"
    return f"{_ms(part.difference_ns)} ms, {_ms(part.low_ns)} to {_ms(part.high_ns)}"


def price_sentences(arms: tuple[str, str], price: Price) -> list[str]:
    """What push cost, and what it gained on P."""
    costs = []
    if price.registration_last is not None:
        late = (
            f"D's registration came after P had finished in {price.registration_last:.0%} of {price.requests} requests"
        )
        if price.late_wait_ns is not None:
            late += f" (P's blocks then waited {_ms(price.late_wait_ns)} ms, median)"
        costs.append(late)
    if price.reserved_ns is not None:
        costs.append(f"D's blocks stood reserved {_ms(price.reserved_ns)} ms (median) before P had finished")
    costs.append(_choice(price))
    found = ["What push cost: " + "; ".join(cost for cost in costs if cost) + "."] if any(costs) else []
    held = price.held
    if held is not None:
        text = (
            f"P held its blocks after prefill for {_ms(held.first)} ms with {arms[0]}, {_ms(held.second)} ms with "
            f"{arms[1]} (mean)"
        )
        less = f"{arms[0]} minus {arms[1]} {_ms(held.difference.value)} ms, "
        less += _inside(held.difference.low, held.difference.high)
        if held.differs is None:
            found.append(f"{text}.")
        else:
            found.append(f"{text}: {less}." if held.differs else f"{text}: no difference ({less}).")
    return found


def saving_sentences(saving: Saving) -> list[str]:
    """What reuse saved in prefill against what the extra transfer cost, and for how many tokens."""
    found = []
    if saving.prefill is not None and saving.taking_back is not None:
        found.append(
            f"Of prefill, reuse {_against(saving.prefill, 'saved', 'added')} a turn; "
            f"taking D's KV cache back {_against(saving.taking_back, 'saved', 'cost')}."
        )
    if saving.reuse is not None and saving.pull is not None:
        found.append(
            f"Of each prompt P computed {saving.reuse.computed:.0f} tokens with reuse ({saving.reuse.reused:.0f} came "
            f"back from D, {saving.reuse.cached:.0f} were in its own prefix cache), {saving.pull.computed:.0f} with "
            f"pull ({saving.pull.cached:.0f} in its own prefix cache)."
        )
    if saving.lookups:
        others = ", ".join(f"{n} {outcome}" for outcome, n in saving.lookups.items() if outcome != names.REUSE_HIT)
        text = f"{saving.hits} of {sum(saving.lookups.values())} turns found the turn before"
        found.append(text + (f"; the others: {others}." if others else "."))
    if saving.read_back_ns and saving.read_back_bytes is not None:
        rate = saving.read_back_bytes / saving.read_back_ns
        found.append(
            f"P's READ moved {saving.read_back_bytes / 1e6:.3g} MB in {_ms(saving.read_back_ns)} ms (medians; "
            f"{rate:.3g} GB/s)."
        )
    return [*found, _CACHE_SAID[saving.prefill_cache]]


_CACHE_SAID = {
    PREFILL_CACHE_OFF: "P's prefix cache was off: pull then computes every turn anew, as where P has lost the context.",
    PREFILL_CACHE_ON: "P's prefix cache was on: it has the prompts of earlier turns, so reuse adds only their answers.",
    "": "Nobody said whether P's prefix cache was on: the tokens above tell what it held.",
}


def _against(part: Part, saved: str, cost: str) -> str:
    ms = _ms(abs(part.difference_ns))
    if part.low_ns is None or part.high_ns is None:
        return f"{saved if part.difference_ns < 0 else cost} {ms} ms"
    if not part.differs:
        return f"made no difference ({_signed(part)} ms)"
    ends = sorted((abs(part.low_ns), abs(part.high_ns)))
    return f"{saved if part.difference_ns < 0 else cost} {ms} ms ({_inside(*ends)})"


def _choice(price: Price) -> str:
    if price.decode_engines == 1:
        return "with one decode engine the early choice of D cost nothing"
    if not price.choices:
        return ""
    share = price.regretted / price.choices
    return f"a choice of D made later would have been another one in {share:.0%} of {price.choices} requests"


def _ms(ns: float | None) -> str:
    return "?" if ns is None else milliseconds(ns)
