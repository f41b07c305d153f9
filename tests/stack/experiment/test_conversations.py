"""Conversations against a real router with stub engines: what is said in which turn, what is kept, what is compared."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest

from connector import names
from stack.analysis.synthetic import MS, Figures
from stack.analysis.terminal import Terminal
from stack.experiment.client import new_session
from stack.experiment.counted import FIRST_TURN
from stack.experiment.load import FAREWELL, Load, Row, offer
from stack.experiment.plan import Changes, arrivals_ns, make_plan
from stack.experiment.presets import REUSE
from stack.experiment.prompts import PromptSource
from stack.experiment.result_text import result_text
from stack.experiment.run import Setup, run_experiment
from stack.experiment.run_folder import RunFolder
from stack.router.stub_engine import Reply

SMALL = Changes(
    rates=(200.0,), input_tokens=(20,), output_tokens=4, requests=2, blocks=2, turns=3, new_tokens=5, gap_s=0.01
)


def quiet(_: str) -> None:
    pass


def plan_of(**more):
    return make_plan(REUSE, replace(SMALL, prefill_cache="off", **more))


def sent_by_conversation(engine) -> dict[str, list[dict]]:
    """The bodies of each conversation in their order, by the name that it begins with; those of the farewell by "" ."""
    found = defaultdict(list)
    for request in engine.requests:
        prompt = request.body.get("prompt", "")
        if re.match(r"[0-9a-f]{8}-\d{3}-\d-\d\n", prompt) or prompt == FAREWELL:
            found[prompt.partition("\n")[0] if prompt != FAREWELL else ""].append(request.body)
    return dict(found)


def test_every_turn_goes_on_from_the_answer_before(deployment, tmp_path):
    deployment.decode.requests.clear()
    run_experiment(RunFolder.create(tmp_path / "run", plan_of()), Setup(deployment.url), quiet)
    talks = sent_by_conversation(deployment.decode)
    farewells = talks.pop("")
    assert len(talks) == len(farewells) == 2 * (1 + 2 * 2), "a warm-up conversation and two blocks of two in each arm"
    assert {body["max_tokens"] for body in farewells} == {1}
    for bodies in talks.values():
        prompts = [body["prompt"] for body in bodies]
        for earlier, later in pairwise(prompts):
            assert later.startswith(earlier + " word word word end\n")
        assert [prompt.rsplit("\n", 1)[1] for prompt in prompts] == ["Turn 1", "Turn 2", "Turn 3"]
        assert not any("cache_salt" in body for body in bodies), "D keeps nothing of a salted request"


def test_both_arms_hold_the_same_conversations_but_for_their_names(deployment, tmp_path):
    deployment.decode.requests.clear()
    run_experiment(RunFolder.create(tmp_path / "run", plan_of()), Setup(deployment.url), quiet)
    by_arm = defaultdict(list)
    for request in deployment.decode.requests:
        if request.body.get("prompt", "").endswith("Turn 3"):
            mode = request.body["kv_transfer_params"][names.PARAM_MODE]
            by_arm[mode].append(request.body["prompt"].partition("\n")[2])
    assert len(by_arm["pull"]) == 5
    assert sorted(by_arm["pull"]) == sorted(by_arm["reuse"])


def test_only_the_next_turns_of_the_reuse_arm_are_offered_what_d_keeps(deployment, tmp_path):
    deployment.prefill.requests.clear()
    run_experiment(RunFolder.create(tmp_path / "run", plan_of()), Setup(deployment.url), quiet)
    offered = defaultdict(list)
    for name, bodies in sent_by_conversation(deployment.prefill).items():
        for body in bodies:
            params = body["kv_transfer_params"]
            offered[name, params[names.PARAM_MODE]].append(params.get("remote_num_tokens"))
    farewells = {mode: offered.pop(("", mode)) for mode in ("pull", "reuse")}
    assert {tuple(tokens) for (_, mode), tokens in offered.items() if mode == "pull"} == {(None,) * 3}
    assert {tuple(tokens) for (_, mode), tokens in offered.items() if mode == "reuse"} == {(None, 100, 100)}
    # The farewell goes on from nothing: P is told to read nothing, so that D lets go of the last turn's blocks.
    assert farewells == {"pull": [None] * 5, "reuse": [0] * 5}


def test_a_run_from_the_first_turn_to_the_verdict(deployment, tmp_path):
    deployment.figures = {
        names.MODE_PULL: Figures(prefill=800 * MS, prompt_tokens=640),
        names.MODE_REUSE: Figures(prefill=200 * MS, prompt_tokens=640, reused_tokens=512, reuse_flight=30 * MS),
    }
    folder = RunFolder.create(tmp_path / "run", plan_of(blocks=6))
    said: list[str] = []
    result = run_experiment(folder, Setup(deployment.url, deployment.store_url), said.append)
    (cell,) = result.cells
    for arm in cell.arms:
        assert (arm.seen, arm.warm_up, sum(map(len, arm.traced()))) == (36, 3, 24)
        assert dict(arm.excluded) == {FIRST_TURN: 12}
    saving = cell.verdict.saving
    assert (saving.prefill.difference_ns, saving.prefill.differs) == (-600 * MS, True)
    assert saving.taking_back.stages["reuse_flight"] == 30 * MS
    assert (saving.reuse.reused, saving.reuse.computed, saving.pull.computed) == (512, 128, 640)
    assert saving.lookups == {"hit": 24}
    text = result_text(result, Terminal())
    assert text.startswith("P's prefix cache is off\n")
    for expected in (
        "Of prefill, reuse saved 600.0 ms (95% interval 600.0 to 600.0 ms) a turn; "
        "taking D's KV cache back cost 32.62 ms (95% interval 32.62 to 32.62 ms).",
        "24 of 24 turns found the turn before.",
        "P's prefix cache was off",
        "left out: 12 of first turn of a conversation: nothing is kept yet",
        "TTFT 778 ms pull; another load",
    ):
        assert " ".join(expected.split()) in " ".join(text.split()), expected
    assert "push" not in result.document()["arms"]
    assert result.document()["prefill_cache"] == "off"


def test_a_conversation_ends_with_the_turn_that_fails_and_the_others_go_on(deployment, tmp_path):
    def second_turns_fail(request):
        return Reply(status=500) if request.body.get("prompt", "").endswith("Turn 2") else Reply()

    deployment.decode.choose_reply = second_turns_fail
    result = run_experiment(RunFolder.create(tmp_path / "run", plan_of()), Setup(deployment.url), quiet)
    for arm in result.cells[0].arms:
        assert dict(arm.excluded) == {FIRST_TURN: 4, "error: http_500": 4}
        assert arm.seen == 8


async def test_a_turn_is_due_a_gap_after_the_answer_before(deployment):
    plan = plan_of(gap_s=0.05)
    block = plan.blocks[-1]
    prompts = PromptSource().prompts(block, plan.cells[0])
    load = Load(block, 1, deployment.url, "m", prompts, arrivals_ns(block, 200.0), gap_ns=50_000_000, run="test-")
    async with new_session(10) as session:
        rows: list[Row] = await offer(session, load, lambda row: None)
    assert [(row.prompt, row.turn, row.index) for row in rows] == [
        (number, turn, 3 * number + turn - 1) for number in (0, 1) for turn in (1, 2, 3)
    ]
    for earlier, later in pairwise(rows[:3]):
        ended = earlier.sent_ns + earlier.total_ns
        assert later.scheduled_ns >= ended + load.gap_ns
        assert later.lag_ns >= 0


async def test_a_conversation_that_is_interrupted_leaves_no_task(deployment):
    plan = plan_of(gap_s=60.0)
    block = plan.blocks[-1]
    load = Load(block, 1, deployment.url, "m", PromptSource().prompts(block, plan.cells[0]), [0, 0], 60 * 10**9, "t-")
    first = asyncio.Event()
    async with new_session(10) as session:
        running = asyncio.create_task(offer(session, load, lambda row: first.set()))
        await first.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert len(asyncio.all_tasks()) == 1
