"""Are push and pull the same to a user? Greedy text of both on the same long prompts, and complete traces of each.

What was generated is compared and hashed, never stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from connector import names
from stack.analysis.complete import defects
from stack.analysis.trace import Trace
from stack.experiment.client import Answer, completion_body, stream
from stack.experiment.collect import collect_traces
from stack.experiment.prompts import SAMPLE_CHARACTERS, measured_ratio, window

MODES = (names.MODE_PUSH, names.MODE_PULL)
_SEED = 7001  # of the first prompt; none of an experiment's
SETTLE_S = 10.0


@dataclass(frozen=True, slots=True)
class Told:
    """One answer, without its text. ``defects`` is ``None`` when its trace was not found."""

    mode: str
    sha256: str
    output_tokens: int
    ttft_ms: float
    trace_id: str
    defects: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Compared:
    """Both answers to one prompt. ``same_characters``: how far the texts agree."""

    prompt_tokens: int
    equal: bool
    same_characters: int
    characters: int
    told: tuple[Told, ...]


@dataclass(frozen=True, slots=True)
class SameText:
    prompts: tuple[Compared, ...]

    @property
    def equal(self) -> bool:
        return all(prompt.equal for prompt in self.prompts)

    @property
    def complete(self) -> bool:
        return all(told.defects == () for prompt in self.prompts for told in prompt.told)

    def document(self) -> dict[str, Any]:
        return {"equal": self.equal, "traces_complete": self.complete, **asdict(self)}

    def __str__(self) -> str:
        lengths = ", ".join(str(prompt.prompt_tokens) for prompt in self.prompts)
        text = "equal" if self.equal else "DIFFERENT"
        traces = "all complete" if self.complete else "NOT all complete"
        return f"greedy text of push and pull on prompts of {lengths} tokens: {text}; traces: {traces}"


async def same_text(
    session: aiohttp.ClientSession,
    router: str,
    model: str,
    *,
    store: str,
    prompts: int,
    input_tokens: int,
    output_tokens: int,
    say: Callable[[str], None],
) -> tuple[SameText, list[Trace]]:
    """Sends each prompt in both modes, one at a time; raises ``RequestError`` when one fails."""
    sample = completion_body(model, window(_SEED, SAMPLE_CHARACTERS), 1)
    own = {names.HEADER_MODE: MODES[0], names.HEADER_UNCOUNTED: names.UNCOUNTED_TRIAL}
    counted = (await stream(session, router, sample, own)).prompt_tokens
    characters = round(input_tokens * measured_ratio(SAMPLE_CHARACTERS, counted))
    answers: list[list[Answer]] = []
    for number in range(prompts):
        body = completion_body(model, window(_SEED + number, characters), output_tokens)
        pair: list[Answer] = []
        for mode in MODES:
            salted = body | {"cache_salt": f"text-{number}-{mode}"}
            pair.append(await stream(session, router, salted, {names.HEADER_MODE: mode}))
        answers.append(pair)
        say(f"text check {number + 1}/{prompts}: {pair[0].prompt_tokens} tokens")
    # An engine that idles does not look for notifications: one more request has P free the last pull's blocks.
    await stream(session, router, sample, own | {names.HEADER_UNCOUNTED: names.UNCOUNTED_STEP})
    ids = [_trace_id(answer) for pair in answers for answer in pair]
    traces = collect_traces(store, ids, say, timeout_s=SETTLE_S)
    by_id = {trace.trace_id: trace for trace in traces}
    return SameText(tuple(_compared(pair, by_id) for pair in answers)), traces


def _compared(pair: Sequence[Answer], traces: dict[str, Trace]) -> Compared:
    texts = [answer.text for answer in pair]
    same = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    return Compared(
        prompt_tokens=pair[0].prompt_tokens,
        equal=texts[0] == texts[1],
        same_characters=same,
        characters=len(texts[0]),
        told=tuple(_told(mode, answer, traces) for mode, answer in zip(MODES, pair, strict=True)),
    )


def _told(mode: str, answer: Answer, traces: dict[str, Trace]) -> Told:
    trace = traces.get(_trace_id(answer))
    return Told(
        mode=mode,
        sha256=hashlib.sha256(answer.text.encode()).hexdigest(),
        output_tokens=answer.output_tokens,
        ttft_ms=answer.ttft_ns / 1e6,
        trace_id=_trace_id(answer),
        defects=None if trace is None else tuple(map(str, defects(trace, engine_spans=True))),
    )


def _trace_id(answer: Answer) -> str:
    return answer.headers.get(names.HEADER_TRACE_ID, answer.trace_id)
