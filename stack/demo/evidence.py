"""Pure comparisons of the demo: the client's TTFT with the traces', and the texts of all ways to generate one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from stack.analysis.compare import Analysed
from stack.demo.client import Answer
from stack.demo.prompts import Prompt


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of the demo and its answer."""

    mode: str
    prompt: Prompt
    answer: Answer


@dataclass(frozen=True, slots=True)
class Agreement:
    """How much longer the client's TTFT was than the trace's, in one mode. Milliseconds."""

    requests: int
    client_p50_ms: float
    trace_p50_ms: float
    difference_p50_ms: float  # of each request's client TTFT minus its trace's TTFT
    difference_max_ms: float


@dataclass(frozen=True, slots=True)
class Texts:
    """In how many prompts two ways of generating gave different text."""

    prompts: int
    plain_twice_differ: int
    differ_from_plain: Mapping[str, int]  # by mode, against the first plain run
    modes_differ: int


def agreement(sent: Sequence[Sent], analysed: Mapping[str, Analysed]) -> dict[str, Agreement]:
    """Compares request by request; a request without a critical path is left out of ``requests``."""
    found: dict[str, Agreement] = {}
    for mode in dict.fromkeys(each.mode for each in sent):
        pairs: list[tuple[int, int]] = []
        for each in sent:
            item = analysed.get(each.answer.trace_id)
            if each.mode == mode and item is not None and item.path is not None:
                pairs.append((each.answer.ttft_ns, item.path.ttft_ns))
        if pairs:
            differences = [client - trace for client, trace in pairs]
            found[mode] = Agreement(
                requests=len(pairs),
                client_p50_ms=median(client for client, _ in pairs) / 1e6,
                trace_p50_ms=median(trace for _, trace in pairs) / 1e6,
                difference_p50_ms=median(differences) / 1e6,
                difference_max_ms=max(differences, key=abs) / 1e6,
            )
    return found


def compare_texts(sent: Sequence[Sent], plain: Sequence[Sequence[Answer]]) -> Texts:
    """``plain`` holds two runs without transfer, each with the answers in the order of the prompts' indexes."""
    first, second = plain
    by_mode: dict[str, dict[int, str]] = {}
    for each in sent:
        by_mode.setdefault(each.mode, {})[each.prompt.index] = each.answer.text
    return Texts(
        prompts=len(first),
        plain_twice_differ=sum(a.text != b.text for a, b in zip(first, second, strict=True)),
        differ_from_plain={
            mode: sum(texts[index] != answer.text for index, answer in enumerate(first))
            for mode, texts in by_mode.items()
        },
        modes_differ=sum(len({texts[index] for texts in by_mode.values()}) > 1 for index in range(len(first))),
    )


def request_record(each: Sent, item: Analysed | None) -> dict[str, Any]:
    """One request as it stands in result.json: no prompt and no text."""
    path = item.path if item is not None else None
    return {
        "mode": each.mode,
        "prompt": each.prompt.index,
        "prompt_tokens": each.answer.prompt_tokens,
        "output_tokens": each.answer.output_tokens,
        "trace_id": each.answer.trace_id,
        "client_ttft_ns": each.answer.ttft_ns,
        "client_duration_ns": each.answer.duration_ns,
        "trace_ttft_ns": path.ttft_ns if path is not None else None,
        "stages_ns": dict(path.stages) if path is not None else None,
        "unexplained_ns": path.unexplained_ns if path is not None else None,
        "last_arrival": path.last_arrival if path is not None else None,
        "defects": [str(defect) for defect in item.defects] if item is not None else ["trace missing"],
        "excluded": item.excluded if item is not None else "no trace",
    }


def as_plain(value: Mapping[str, Agreement] | Texts) -> dict[str, Any]:
    """Turns the dataclasses of this module into what JSON can hold."""
    if isinstance(value, Texts):
        return asdict(value) | {"differ_from_plain": dict(value.differ_from_plain)}
    return {mode: asdict(each) for mode, each in value.items()}
