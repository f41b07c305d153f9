"""What tracing costs: the same requests to deployments that differ in their connector only, alternating.

In each round every deployment answers the same prompts, one request at a time, so that nothing queues and a cost of a
millisecond is seen. The order turns from round to round, and each deployment comes first, in the middle and last
equally often. Rounds are the blocks of the bootstrap.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from connector import names
from stack.experiment.client import completion_body, stream
from stack.experiment.plan import derived_seed
from stack.experiment.prompts import SAMPLE_CHARACTERS, measured_ratio, window
from stack.experiment.statistics import MEAN, MEDIAN, Resampler, compare_blocks

ROWS = "overhead.jsonl"
TARGET = 0.01  # the cost's upper end shall lie below
METRICS = ("ttft_ns", "tpot_ns")
WARM_UP = 2  # requests of each length to each deployment before the first round


@dataclass(frozen=True, slots=True)
class OverheadPlan:
    """``rounds`` of one request of each length to each deployment."""

    rounds: int = 30
    input_tokens: tuple[int, ...] = (512, 4096)
    output_tokens: int = 64
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Cost:
    """Relative to the baseline: 0.01 is one per cent more. ``low`` and ``high`` are ``None`` with too few rounds."""

    input_tokens: int
    variant: str
    metric: str
    statistic: str
    rounds: int
    baseline_ms: float
    variant_ms: float
    cost: float
    low: float | None
    high: float | None

    @property
    def meets_target(self) -> bool | None:
        """Holds when the interval contains 0, or lies below it, and its upper end is below :data:`TARGET`."""
        return None if self.low is None or self.high is None else self.low <= 0 and self.high < TARGET

    def __str__(self) -> str:
        interval = "" if self.low is None else f" [{self.low:+.2%}, {self.high:+.2%}]"
        return (
            f"{self.variant}, {self.input_tokens} tokens, {self.metric[:4].upper()} {self.statistic}: "
            f"{self.baseline_ms:.3f} → {self.variant_ms:.3f} ms, {self.cost:+.2%}{interval}"
        )


def order_of(round_: int, variants: Sequence[str]) -> list[str]:
    """Returns the variants rotated by the round, and backwards in every other turn through all rotations."""
    by = round_ % len(variants)
    turned = [*variants[by:], *variants[:by]]
    return turned if (round_ // len(variants)) % 2 == 0 else turned[::-1]


async def measure_overhead(
    session: aiohttp.ClientSession,
    routers: Mapping[str, str],
    model: str,
    plan: OverheadPlan,
    rows: Path,
    say: Callable[[str], None],
) -> None:
    """Appends a row a request to ``rows``, from the first round on that is not whole there."""
    done = len(whole_rounds(read_rows(rows), tuple(routers), plan))
    variants = tuple(routers)
    first = routers[variants[0]]
    counted = (
        await _send(session, first, model, window(plan.seed, SAMPLE_CHARACTERS), 1, names.UNCOUNTED_TRIAL)
    ).prompt_tokens
    ratio = measured_ratio(SAMPLE_CHARACTERS, counted)
    for variant in variants:
        for length in plan.input_tokens:
            for _ in range(WARM_UP):
                text = window(0, round(length * ratio))
                await _send(session, routers[variant], model, text, plan.output_tokens, names.UNCOUNTED_WARM_UP)
    for round_ in range(done, plan.rounds):
        prompts = {n: window(derived_seed(plan.seed, round_, n), round(n * ratio)) for n in plan.input_tokens}
        found: list[dict[str, Any]] = []
        for variant in order_of(round_, variants):
            for length, text in prompts.items():
                answer = await _send(session, routers[variant], model, text, plan.output_tokens)
                found.append(
                    {"round": round_, "variant": variant, "input_tokens": length}
                    | {"prompt_tokens": answer.prompt_tokens, "ttft_ns": answer.ttft_ns, "tpot_ns": answer.tpot_ns}
                )
        with rows.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in found)
        if round_ % 5 == 4:
            say(f"tracing: round {round_ + 1} of {plan.rounds}")


async def _send(
    session: aiohttp.ClientSession, router: str, model: str, text: str, tokens: int, uncounted: str = ""
) -> Any:
    headers = {names.HEADER_MODE: names.MODE_PUSH} | ({names.HEADER_UNCOUNTED: uncounted} if uncounted else {})
    return await stream(session, router, completion_body(model, text, tokens), headers)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the whole lines of the file, none when there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def whole_rounds(rows: Sequence[Mapping[str, Any]], variants: Sequence[str], plan: OverheadPlan) -> list[int]:
    """Returns the rounds, from 0 on, in which every deployment has answered every length."""
    wanted = len(variants) * len(plan.input_tokens)
    counts: dict[int, int] = {}
    for row in rows:
        counts[row["round"]] = counts.get(row["round"], 0) + 1
    whole: list[int] = []
    while counts.get(len(whole), 0) >= wanted:
        whole.append(len(whole))
    return whole


def costs(rows: Sequence[Mapping[str, Any]], variants: Sequence[str], plan: OverheadPlan) -> list[Cost]:
    """Compares every variant with the first of ``variants``, by length and metric."""
    rounds = whole_rounds(rows, variants, plan)
    if not rounds:
        return []
    resampler = Resampler(len(rounds))
    found: list[Cost] = []
    for length in plan.input_tokens:
        for metric in METRICS:
            values = {variant: _by_round(rows, rounds, variant, length, metric) for variant in variants}
            for variant in variants[1:]:
                compared = compare_blocks(values[variant], values[variants[0]], resampler)
                for statistic in (MEAN, MEDIAN):
                    one = compared.get(statistic)
                    if one is None or one.ratio is None:
                        continue
                    ends = [None if end is None else end - 1 for end in (one.ratio.low, one.ratio.high)]
                    means = one.second / 1e6, one.first / 1e6
                    found.append(
                        Cost(length, variant, metric, statistic, len(rounds), *means, one.ratio.value - 1, *ends)
                    )
    return found


def _by_round(
    rows: Sequence[Mapping[str, Any]], rounds: Sequence[int], variant: str, length: int, metric: str
) -> list[list[float]]:
    values: dict[int, list[float]] = {round_: [] for round_ in rounds}
    for row in rows:
        same = row["variant"] == variant and row["input_tokens"] == length
        if same and row["round"] in values and row[metric] is not None:
            values[row["round"]].append(row[metric])
    return [values[round_] for round_ in rounds]


def overhead_document(found: Sequence[Cost], plan: OverheadPlan) -> dict[str, Any]:
    return {
        "schema": "kvpath.overhead/1",
        "plan": asdict(plan),
        "target": TARGET,
        "costs": [asdict(cost) | {"meets_target": cost.meets_target} for cost in found],
    }
