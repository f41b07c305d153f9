"""Runs an experiment block by block into its folder, and makes the result. Used by ``kvpath ab`` and the demo."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import aiohttp

from connector import names
from stack.analysis.source import SourceError
from stack.analysis.trace import Trace
from stack.experiment.annotations import Annotate, BlockAnnotations
from stack.experiment.client import RequestError, completion_body, new_session, stream
from stack.experiment.collect import collect_traces
from stack.experiment.environment import environment, processes
from stack.experiment.errors import EXIT_FAILED, EXIT_USAGE, ExperimentError
from stack.experiment.load import REQUEST_TIMEOUT_S, Load, Row, offer
from stack.experiment.plan import Block, Cell, Plan, arrivals_ns
from stack.experiment.prompts import SAMPLE_CHARACTERS, Line, Prompt, PromptSource, measured_ratio, window
from stack.experiment.result import Measured, Result, make_result
from stack.experiment.run_folder import ENVIRONMENT, PROBE, RESULT, FinishedBlock, RunFolder
from stack.experiment.step import step
from stack.experiment.target import Asker, Target
from stack.experiment.traced import path_row_from, path_rows

T = TypeVar("T")
RATIO = "characters_a_token"
Say = Callable[[str], None]
Probe = Callable[[Target, Plan], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run needs beside its folder. ``traces`` is ``None`` for a run without traces.

    ``probe`` measures the link; it may raise ``ExperimentError``, which becomes a note. ``extra`` goes into
    ``environment.json`` (engine flags, for one who started the engines). ``annotate`` marks blocks in Grafana.
    """

    router: str
    traces: str | None = None
    lines: Sequence[Line] = ()
    probe: Probe | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    settle_s: float = 10.0  # for late spans, after each block
    annotate: Annotate | None = None


def run_experiment(folder: RunFolder, setup: Setup, say: Say) -> Result:
    """Runs every block that is not finished yet; raises ``TargetError``, ``FolderError`` or ``ExperimentError``."""
    if not all(map(folder.finished, folder.plan.blocks)):
        _run_blocks(folder, setup, say)
    result = result_of(folder)
    folder.write(RESULT, result.document())
    return result


def _run_blocks(folder: RunFolder, setup: Setup, say: Say) -> None:
    with Asker(setup.router) as asker:
        target = asker.target()
        _check(target, folder.plan)
        run = _Run(folder, setup, say, asker, target)
        with asyncio.Runner() as runner:
            session = _complete(runner, _session())
            try:
                run.prepare(runner, session)
                run.probe()
                for block in folder.plan.blocks:
                    if not folder.finished(block):
                        run.block(runner, session, block)
            finally:
                run.annotations.settle()
                _complete(runner, session.close())


def result_of(folder: RunFolder) -> Result:
    """Makes the result of what is recorded in a folder."""
    known = folder.read(ENVIRONMENT) or {}
    engines = list(known.get("target", {}).get("engines", {}).values())
    return make_result(
        Measured(
            plan=folder.plan,
            rows=folder.requests(),
            paths={trace_id: path_row_from(row) for trace_id, row in folder.paths().items()},
            blocks=folder.blocks(),
            probe=folder.read(PROBE),
            decode_engines=engines.count("decode") if engines else None,
            notes=tuple(known.get("notes", ())),
        )
    )


def _complete(runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
    """Runs ``work`` to its end; raises ``KeyboardInterrupt`` for every Ctrl-C.

    One that comes just before the first step leaves the runner as a bare cancellation: CPython's ``Runner.run`` sets
    its count of interrupts to 0 after it has taken the signal over. Nobody else cancels ``work``.
    """
    try:
        return runner.run(work)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _session() -> aiohttp.ClientSession:
    return new_session(REQUEST_TIMEOUT_S)


def _check(target: Target, plan: Plan) -> None:
    missing = sorted(set(plan.modes) - set(target.modes))
    if missing:
        raise ExperimentError(
            f"the router at {target.url} does not take mode {' or '.join(missing)} from a request; "
            f"it serves {', '.join(target.modes) or 'nothing'} (allow_mode_header must be on)",
            EXIT_USAGE,
        )
    limit = target.max_model_len
    for cell in plan.cells:
        longest = cell.longest_input
        if limit is not None and longest is not None and longest + cell.output_tokens > limit:
            raise ExperimentError(
                f"{longest} tokens in and {cell.output_tokens} out are more than {target.model}'s limit of "
                f"{limit}; use a smaller --input-tokens",
                EXIT_USAGE,
            )


class _Run:
    """One run of an experiment: what does not change from block to block."""

    def __init__(self, folder: RunFolder, setup: Setup, say: Say, asker: Asker, target: Target) -> None:
        self._folder, self._setup, self._say = folder, setup, say
        self._asker, self._target = asker, target
        self._plan = folder.plan
        self._traces = setup.traces
        self._source = PromptSource(tuple(setup.lines))
        self._run = f"{secrets.token_hex(4)}-"
        self.annotations = BlockAnnotations(setup.annotate, folder.plan, say)

    def prepare(self, runner: asyncio.Runner, session: aiohttp.ClientSession) -> None:
        """Measures characters a token, tries the longest request, and records the environment; once a folder."""
        known = self._folder.read(ENVIRONMENT)
        if known is not None:
            if known["target"]["model"] != self._target.model:
                raise ExperimentError(
                    f"{self._folder.path} was measured with {known['target']['model']}, the router now serves "
                    f"{self._target.model}; choose another --out",
                    EXIT_USAGE,
                )
            self._source = PromptSource(tuple(self._setup.lines), known[RATIO])
            return
        ratio = self._source.characters_a_token
        if not self._setup.lines:
            sample = Prompt(0, window(self._plan.seed, SAMPLE_CHARACTERS), 1)
            ratio = measured_ratio(SAMPLE_CHARACTERS, _complete(runner, self._try(session, sample)))
            self._source = PromptSource((), ratio)
        longest = max(self._first_prompts(), key=lambda prompt: len(prompt.text))
        _complete(runner, self._try(session, longest))
        self._folder.write(ENVIRONMENT, environment(self._target, self._setup.extra) | {RATIO: ratio})
        if self._traces is None:
            self._note("traces were not asked for: no stages")

    def _first_prompts(self) -> list[Prompt]:
        if self._setup.lines:
            default = self._plan.cells[0].output_tokens
            return [Prompt(n, line.text, line.output_tokens or default) for n, line in enumerate(self._setup.lines)]
        first = {block.cell: block for block in reversed(self._plan.blocks)}
        return [self._longest(block, self._plan.cells[cell]) for cell, block in first.items()]

    def _longest(self, block: Block, cell: Cell) -> Prompt:
        """The first prompt of a block; of a conversation, one as long as its last turn's."""
        prompt = self._source.prompts(block, cell)[0]
        answers = round(len(prompt.later) * cell.output_tokens * self._source.characters_a_token)
        return replace(prompt, text="".join((prompt.text, *prompt.later, window(block.seed, answers))), later=())

    async def _try(self, session: aiohttp.ClientSession, prompt: Prompt) -> int:
        """Sends one request outside the experiment and returns its prompt tokens."""
        body = completion_body(self._target.model, prompt.text, prompt.output_tokens)
        mode = {names.HEADER_MODE: self._plan.modes[0], names.HEADER_UNCOUNTED: names.UNCOUNTED_TRIAL}
        try:
            return (await stream(session, self._target.url, body, mode)).prompt_tokens
        except RequestError as error:
            refused = 400 <= error.status < 500
            what = f"a prompt of {len(prompt.text)} characters with {prompt.output_tokens} output tokens"
            raise ExperimentError(f"{what} cannot be served: {error}", EXIT_USAGE if refused else EXIT_FAILED) from None

    def probe(self) -> None:
        """Measures the link before the first block; a folder that has a probe keeps it."""
        if self._setup.probe is None or self._folder.read(PROBE) is not None:
            return
        self._say("probing the link")
        try:
            self._folder.write(PROBE, self._setup.probe(self._target, self._plan))
        except ExperimentError as error:
            self._note(f"no link probe: {error}")

    def block(self, runner: asyncio.Runner, session: aiohttp.ClientSession, block: Block) -> None:
        """Runs one block; only when everything of it is on disk does it count."""
        cell, attempt = self._plan.cells[block.cell], self._folder.next_attempt(block)
        before = self._asker.early_choices()
        load = Load(
            block=block,
            attempt=attempt,
            url=self._target.url,
            model=self._target.model,
            prompts=self._source.prompts(block, cell),
            due_ns=arrivals_ns(block, cell.rate),
            gap_ns=round(cell.gap_s * 1e9),
            run=self._run,
        )
        self.annotations.settle()
        start = time.time()
        rows = _complete(runner, offer(session, load, self._folder.append_request))
        self.annotations.ended(block, start, time.time())
        self._refuse_failure(block, rows)
        choices = self._asker.early_choices().since(before)
        if self._traces is not None:
            _complete(runner, self._let_prefill_step(session))
        traces = self._collect(rows)
        paths = path_rows(traces)
        if block.warm_up:
            self._note_processes(traces)
            for path in paths:
                if path.mode and path.mode != block.mode:
                    raise ExperimentError(
                        f"the router ran a {block.mode} request as {path.mode}: it ignores the mode header "
                        "(allow_mode_header is off) or fell back; its log says which",
                        EXIT_USAGE,
                    )
        seconds = max(row.sent_ns + (row.total_ns or 0) for row in rows) / 1e9
        own = [{"block": block.index, "attempt": attempt, **path.document()} for path in paths]
        self._folder.finish(FinishedBlock(block.index, attempt, seconds, choices), own)
        self._say(self._progress(block, cell, rows, len(paths)))

    async def _let_prefill_step(self, session: aiohttp.ClientSession) -> None:
        """One short request that is not counted, so that P sees what the last one's reader told it."""
        mode = names.MODE_PUSH if names.MODE_PUSH in self._target.modes else self._plan.modes[0]
        with contextlib.suppress(RequestError):
            await step(session, self._target.url, self._target.model, {names.HEADER_MODE: mode})

    def _refuse_failure(self, block: Block, rows: Sequence[Row]) -> None:
        failed = [row for row in rows if row.error]
        if len(failed) == len(rows):
            raise ExperimentError(
                f"every request of block {block.index} failed, the first with: {failed[0].message}; "
                f"finished blocks are kept: --resume --out {self._folder.path} goes on from here"
            )

    def _collect(self, rows: Sequence[Row]) -> list[Trace]:
        ids = [row.trace_id for row in rows if row.trace_id and not row.error]
        if self._traces is None or not ids:
            return []
        try:
            traces = collect_traces(
                self._traces, ids, lambda _: None, engine_spans=False, timeout_s=self._setup.settle_s
            )
        except SourceError as error:
            return self._without_traces(str(error))
        return traces or self._without_traces(f"{self._traces} has none of the traces")

    def _without_traces(self, reason: str) -> list[Trace]:
        """Asks no more: every block would wait in vain."""
        self._traces = None
        self._note(f"no traces, so no stages from there on: {reason}")
        return []

    def _note(self, text: str) -> None:
        """Says something that belongs to the result, also to that of a run which is resumed later."""
        self._say(f"note: {text}")
        known = self._folder.read(ENVIRONMENT) or {}
        if text not in known.get("notes", ()):
            self._folder.write(ENVIRONMENT, known | {"notes": [*known.get("notes", ()), text]})

    def _note_processes(self, traces: Sequence[Trace]) -> None:
        known = self._folder.read(ENVIRONMENT) or {}
        if traces and "processes" not in known:
            found = processes(span.resource for trace in traces for span in trace.spans)
            self._folder.write(ENVIRONMENT, known | {"processes": found})

    def _progress(self, block: Block, cell: Cell, rows: Sequence[Row], traced: int) -> str:
        text = f"block {block.index + 1}/{len(self._plan.blocks)} {self._plan.arms[block.arm]}"
        if block.warm_up:
            return f"{text}, warm-up for {cell}"
        times = sorted(row.ttft_ns for row in rows if row.ttft_ns is not None and (row.turn > 1 or cell.turns == 1))
        failed = sum(1 for row in rows if row.error)
        text += f": TTFT {times[len(times) // 2] / 1e6:.0f} ms (median of {len(times)})" if times else ""
        text += f", {failed} failed" if failed else ""
        return text + (f", {traced} traced" if self._traces else "")
