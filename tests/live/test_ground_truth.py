"""The analysis against delays at known places: each is found in its stage, in no other, and named by the verdict.

Router, engines, connectors and agents are the real ones; what is added holds a request up where the test says
(:mod:`control`, :mod:`late`, :mod:`slow_router`), and telemetry does not know. Every condition is asked for once a
round, so that what drifts falls on all alike. Compared are medians over the rounds.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median, quantiles

import pytest
from conftest import HERE, LiveStack, say
from control import (
    CHOICE_OF_D,
    CHOICE_OF_P,
    COMPLETION,
    FIRST_STEP,
    FLIGHT,
    P_QUEUE,
    POST,
    REGISTRATION,
    REPORT,
    VARIABLE,
)

from connector import names
from connector.stages import STAGE_NAMES, UNEXPLAINED
from stack.analysis.complete import defects
from stack.analysis.critical_path import CriticalPath, critical_path
from stack.analysis.trace import Trace
from stack.engines.launch import _router_part
from stack.engines.processes import Deployment
from stack.engines.readiness import Awaited, wait_until_healthy
from stack.experiment.client import Answer, completion_body, new_session, stream
from stack.experiment.collect import collect_traces
from stack.experiment.link import OPERATIONS
from stack.experiment.load import Row
from stack.experiment.plan import Block, Changes, make_plan
from stack.experiment.presets import DEMO
from stack.experiment.result import Measured, make_result
from stack.experiment.run_folder import FinishedBlock
from stack.experiment.statistics import MIN_PAIRS
from stack.experiment.traced import path_rows
from stack.experiment.verdict import FASTER, Verdict

STAGES = (*STAGE_NAMES, UNEXPLAINED)
PUSH, PULL = names.MODE_PUSH, names.MODE_PULL
PROMPT = "The monotonic clock of a process never goes back. " * 4
ROUNDS = MIN_PAIRS
DELAY_S = 0.8  # a tenth of it is more than two medians of a prefill on a busy machine differ by
LATE_S = 1.0  # longer than prefill takes: a registration that is held up so long comes last
HIDDEN_S = 0.75 * DELAY_S
ROUTER_PORT = 18001


@dataclass(frozen=True, slots=True)
class Condition:
    """A request's mode and the delays, in seconds, that it meets."""

    mode: str
    delays: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """``slow`` has ``injected_s`` more than ``usual``, which must show in ``stage``."""

    usual: Condition
    slow: Condition
    injected_s: float
    stage: str

    def __str__(self) -> str:
        return f"{self.slow.mode}-{self.slow.delays[-1][0]}"


def case(mode: str, place: str, stage: str) -> Case:
    return Case(Condition(mode), Condition(mode, ((place, DELAY_S),)), DELAY_S, stage)


def late_registration(seconds: float) -> Condition:
    return Condition(PUSH, ((REGISTRATION, seconds),))


CASES = [
    *(case(mode, CHOICE_OF_P, "route") for mode in (PUSH, PULL)),
    case(PUSH, CHOICE_OF_D, "route"),
    case(PULL, CHOICE_OF_D, "handoff"),
    *(case(mode, P_QUEUE, "prefill_queue") for mode in (PUSH, PULL)),
    Case(late_registration(LATE_S), late_registration(LATE_S + DELAY_S), DELAY_S, "handoff"),
    *(case(mode, POST, "submit") for mode in (PUSH, PULL)),
    *(case(mode, FLIGHT, "flight") for mode in (PUSH, PULL)),
    case(PUSH, COMPLETION, "notify"),
    *(case(mode, REPORT, "notify") for mode in (PUSH, PULL)),
    *(case(mode, FIRST_STEP, "first_step") for mode in (PUSH, PULL)),
]
# Both directions go through the same memory. Without a probe the transfers' own rates would stand for the link, and
# these are small and some of them held up on purpose.
PROBE = {
    "transport": {operation: {"name": "shared memory", "emulated": False} for operation in OPERATIONS},
    "results": [
        {"operation": operation, "layout": "contiguous", "bytes": 2**20, "gigabytes_per_second": 1.0}
        for operation in OPERATIONS
    ],
}
# A registration that is late beside a request that waits in P's queue still comes first.
QUEUED = Condition(PUSH, ((P_QUEUE, DELAY_S),))
HIDDEN = Condition(PUSH, ((P_QUEUE, DELAY_S), (REGISTRATION, HIDDEN_S)))
CONDITIONS = tuple(dict.fromkeys([*(c for each in CASES for c in (each.usual, each.slow)), QUEUED, HIDDEN]))


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: what its client saw, and its trace."""

    answer: Answer
    trace: Trace
    path: CriticalPath

    def ns(self, stage: str) -> int:
        return self.path.unexplained_ns if stage == UNEXPLAINED else self.path.stages[stage]


Recorded = dict[Condition, list[Asked]]


@pytest.fixture(scope="module")
def router_url(stack: LiveStack) -> Iterator[str]:
    """A second router on the same engines, whose choices can be slow."""
    settings = stack.settings.model_copy(
        update={"router_port": ROUTER_PORT, "run_dir": stack.settings.run_dir / "slow-router"}
    )
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    part = _router_part(settings, stack.prefill, stack.decode)
    config = part.argv[part.argv.index("--config") + 1]
    part = replace(
        part,
        argv=(sys.executable, str(HERE / "slow_router.py"), "--config", config),
        env={**part.env, VARIABLE: str(stack.control)},
    )
    with Deployment() as deployment:
        (router,) = deployment.start(part)
        wait_until_healthy(deployment, [Awaited(router, f"{settings.router_url}/ready")], 60.0, say)
        yield settings.router_url


@pytest.fixture(scope="module")
def recorded(stack: LiveStack, router_url: str) -> Recorded:
    answers = asyncio.run(ask_all(stack, router_url))
    stack.step_prefill()
    ids = [answer.trace_id for each in answers.values() for answer in each]
    traces = {trace.trace_id: trace for trace in collect_traces(stack.settings.store_url, ids, say)}
    return {
        condition: [Asked(a, traces[a.trace_id], critical_path(traces[a.trace_id])) for a in each]
        for condition, each in answers.items()
    }


async def ask_all(stack: LiveStack, url: str) -> dict[Condition, list[Answer]]:
    answers: dict[Condition, list[Answer]] = {condition: [] for condition in CONDITIONS}
    body = completion_body(stack.settings.model_name, PROMPT, 2)
    async with new_session(60.0) as session:
        for mode in (PUSH, PULL):  # the first of each counts for nothing
            await stream(session, url, body, {names.HEADER_MODE: mode})
        for number in range(ROUNDS):
            for condition in CONDITIONS if number % 2 == 0 else CONDITIONS[::-1]:
                stack.delay(dict(condition.delays))
                answers[condition].append(await stream(session, url, body, {names.HEADER_MODE: condition.mode}))
                stack.heal()
    return answers


def grown(recorded: Recorded, usual: Condition, slow: Condition, stage: str) -> float:
    """Seconds by which the median of a stage is longer in ``slow``."""
    return (median(a.ns(stage) for a in recorded[slow]) - median(a.ns(stage) for a in recorded[usual])) / 1e9


def tolerance(recorded: Recorded, case: Case, stage: str) -> float:
    """Seconds: a tenth of what was injected, and what the stage varies by itself.

    That is the distance between the quartiles of what it takes without the delay; two medians of :data:`ROUNDS` such
    values differ by about half of it (one standard error). On a machine so busy that it is large it is no excuse: in
    all, a quarter of what was injected is the most that is let pass.
    """
    low, _, high = quantiles((a.ns(stage) for a in recorded[case.usual]), n=4, method="inclusive")
    return 0.1 * case.injected_s + min((high - low) / 1e9, 0.15 * case.injected_s)


def verdict_of(recorded: Recorded, usual: Condition, slow: Condition) -> Verdict:
    """What ``kvpath ab`` would conclude: one request a block, ``usual`` the first arm and ``slow`` the second."""
    modes = (usual.mode, slow.mode)
    plan = make_plan(DEMO, Changes(modes, rates=(1.0,), input_tokens=(64,), requests=1, blocks=ROUNDS))
    rows, traces = [], []
    for block in plan.blocks:
        if not block.warm_up:
            asked = recorded[(usual, slow)[block.arm]][block.pair]
            traces.append(asked.trace)
            rows.append(row_of(block, asked.answer))
    paths = {path.trace_id: path for path in path_rows(traces)}
    blocks = {block.index: FinishedBlock(block.index, 1, 1.0) for block in plan.blocks}
    (cell,) = make_result(Measured(plan, rows, paths, blocks, PROBE)).cells
    return cell.verdict


def row_of(block: Block, answer: Answer) -> Row:
    return Row(
        block=block.index,
        attempt=1,
        index=0,
        prompt=0,
        mode=block.mode,
        scheduled_ns=0,
        sent_ns=0,
        trace_id=answer.trace_id,
        status=200,
        ttft_ns=answer.ttft_ns,
        tpot_ns=answer.tpot_ns,
        total_ns=answer.duration_ns,
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.output_tokens,
        gaps_ns=answer.gaps_ns,
    )


def test_every_trace_is_complete_and_adds_up(recorded: Recorded) -> None:
    for condition, each in recorded.items():
        assert len(each) == ROUNDS
        for asked in each:
            assert [str(defect) for defect in defects(asked.trace, engine_spans=True)] == []
            assert asked.path.mode == condition.mode
            assert sum(asked.path.stages.values()) + asked.path.unexplained_ns == asked.path.ttft_ns
            assert asked.path.anomalies == ()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_injected_delay_is_found_in_its_stage_and_in_no_other(recorded: Recorded, case: Case) -> None:
    found = {stage: grown(recorded, case.usual, case.slow, stage) for stage in STAGES}
    strayed = max((abs(s), stage) for stage, s in found.items() if stage != case.stage)
    say(
        f"{case}: {1e3 * case.injected_s:.0f} ms injected, {1e3 * found[case.stage]:.1f} ms found in {case.stage}; "
        f"elsewhere at most {1e3 * strayed[0]:.1f} ms, in {strayed[1]}"
    )
    for stage, seconds in found.items():
        injected = case.injected_s if stage == case.stage else 0.0
        assert seconds == pytest.approx(injected, abs=tolerance(recorded, case, stage)), stage


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_verdict_names_the_injected_delay(recorded: Recorded, case: Case) -> None:
    verdict = verdict_of(recorded, case.usual, case.slow)
    assert_names(verdict, case.stage)
    assert (verdict.kind, verdict.faster) == (FASTER, f"{case.slow.mode} A")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_verdict_on_push_and_pull_names_it_too(recorded: Recorded, case: Case) -> None:
    """The other mode undisturbed beside the slow one: what really differs between the modes is smaller."""
    other = PULL if case.slow.mode == PUSH else PUSH
    verdict = verdict_of(recorded, Condition(other), case.slow)
    assert_names(verdict, case.stage)
    assert (verdict.kind, verdict.faster) == (FASTER, other)


def assert_names(verdict: Verdict, stage: str) -> None:
    assert verdict.split is not None
    (part,) = [part for part in verdict.split.parts if stage in part.stages]
    assert verdict.split.largest is part
    assert part.differs
    assert f"The largest part is {part.name}, mainly {stage}." in verdict.sentences


def test_a_registration_that_is_late_beside_a_busy_prefill_costs_nothing(recorded: Recorded) -> None:
    """P's queue hides it: the registration still comes first, and no stage grows."""
    hidden = Case(QUEUED, HIDDEN, HIDDEN_S, "")
    assert {a.path.last_arrival for a in recorded[HIDDEN]} == {names.LAST_ARRIVAL_PREFILL}
    assert {a.ns("handoff") for a in recorded[HIDDEN]} == {0}
    for stage in STAGES:
        assert abs(grown(recorded, QUEUED, HIDDEN, stage)) <= tolerance(recorded, hidden, stage), stage


def test_a_registration_that_is_later_than_prefill_comes_last(recorded: Recorded) -> None:
    for seconds in (LATE_S, LATE_S + DELAY_S):
        last = {asked.path.last_arrival for asked in recorded[late_registration(seconds)]}
        assert last == {names.LAST_ARRIVAL_REGISTRATION}
