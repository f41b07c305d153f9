"""Whole experiments against a real router with stub engines: what is recorded, resumed, refused."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import replace

import httpx
import pytest

from connector import names
from stack.analysis.synthetic import MS, Figures
from stack.experiment.errors import ExperimentError
from stack.experiment.plan import Changes, make_plan
from stack.experiment.presets import DEMO
from stack.experiment.run import Setup, _complete, run_experiment
from stack.experiment.run_folder import RunFolder
from stack.router.stub_engine import Reply

SMALL = Changes(rates=(400.0,), input_tokens=(20,), output_tokens=4, requests=3, blocks=2)


def quiet(_: str) -> None:
    pass


def plan_of(changes: Changes = SMALL, **more):
    return make_plan(DEMO, replace(changes, **more))


def test_a_run_from_the_first_block_to_the_verdict(deployment, tmp_path):
    deployment.figures = {names.MODE_PULL: Figures(flight=200 * MS), names.MODE_PUSH: Figures(flight=10 * MS)}
    folder = RunFolder.create(tmp_path / "run", plan_of(blocks=6))
    said: list[str] = []
    result = run_experiment(folder, Setup(deployment.url, deployment.store_url), said.append)
    (cell,) = result.cells
    assert [(arm.seen, arm.warm_up, sum(map(len, arm.traced()))) for arm in cell.arms] == [(18, 1, 18), (18, 1, 18)]
    assert cell.stages["flight"]["p50"].difference.value == -190 * MS
    assert cell.stages["flight"]["p50"].differs
    document = json.loads((folder.path / "result.json").read_text())
    assert document["cells"][0]["verdict"]["split"]["parts"][1]["stages"]["flight"] == -190 * MS
    assert len(said) == len(folder.plan.blocks)
    environment = json.loads((folder.path / "environment.json").read_text())
    assert environment["target"]["engines"] == {"P0": "prefill", "D0": "decode"}
    assert {p["service.name"] for p in environment["processes"]} >= {names.SERVICE_ROUTER, names.SERVICE_DECODE}


def test_the_router_times_what_the_experiment_compares_and_nothing_else(deployment, tmp_path):
    before = first_tokens(deployment.url)
    folder = RunFolder.create(tmp_path / "run", plan_of())
    run_experiment(folder, Setup(deployment.url, deployment.store_url), quiet)
    planned = Counter(block.mode for block in folder.plan.blocks for _ in range(block.requests) if not block.warm_up)
    assert first_tokens(deployment.url) - before == planned


def first_tokens(url: str) -> Counter[str]:
    """How many times to a first token the router knows, by mode."""
    page = httpx.get(f"{url}/metrics").text
    found = re.findall(r'kvpath_router_time_to_first_token_seconds_count{mode="(\w+)"} (\S+)', page)
    return Counter({mode: int(float(count)) for mode, count in found})


def test_both_blocks_of_a_pair_send_the_same_prompts_with_salts_of_their_own(deployment, tmp_path):
    deployment.decode.requests.clear()
    folder = RunFolder.create(tmp_path / "run", plan_of())
    run_experiment(folder, Setup(deployment.url), quiet)
    bodies = [r.body for r in deployment.decode.requests if "cache_salt" in r.body]
    prompts = Counter(body["prompt"] for body in bodies)
    assert set(prompts.values()) == {2}
    assert len({body["cache_salt"] for body in bodies}) == len(bodies) == sum(b.requests for b in folder.plan.blocks)
    assert {body["max_tokens"] for body in bodies} == {4}
    assert all(body["ignore_eos"] for body in bodies)


def test_every_block_runs_in_its_mode(deployment, tmp_path):
    deployment.prefill.requests.clear()
    folder = RunFolder.create(tmp_path / "run", plan_of())
    run_experiment(folder, Setup(deployment.url), quiet)
    modes = [r.body["kv_transfer_params"][names.PARAM_MODE] for r in deployment.prefill.requests]
    planned = [block.mode for block in folder.plan.blocks for _ in range(block.requests)]
    assert modes[-len(planned) :] == planned
    assert [row.mode for row in sorted(folder.requests(), key=lambda r: (r.block, r.index))] == planned


def test_without_a_trace_store_there_are_no_stages_and_a_note(deployment, tmp_path):
    folder = RunFolder.create(tmp_path / "run", plan_of())
    result = run_experiment(folder, Setup(deployment.url, "http://127.0.0.1:1"), quiet)
    (cell,) = result.cells
    assert not cell.stages
    assert cell.figures["ttft"]["p50"].first > 0
    assert any("cannot reach the trace store" in note for note in result.measured.notes)


class DyingError(Exception):
    pass


def test_an_interrupted_run_goes_on_where_it_was(deployment, tmp_path):
    folder = RunFolder.create(tmp_path / "run", plan_of())
    said: list[str] = []

    def die_after_three(line: str) -> None:
        said.append(line)
        if len(said) == 3:
            raise DyingError

    with pytest.raises(DyingError):
        run_experiment(folder, Setup(deployment.url, deployment.store_url), die_after_three)
    before = (folder.path / "requests.jsonl").read_text()
    # A fourth block was begun and its last row torn, as by a kill.
    torn = json.loads(before.splitlines()[-1]) | {"block": 3, "attempt": 1}
    with (folder.path / "requests.jsonl").open("a") as file:
        file.write(json.dumps(torn) + "\n" + json.dumps(torn)[:40])
    again = RunFolder.open(folder.path)
    result = run_experiment(again, Setup(deployment.url, deployment.store_url), said.append)
    after = (folder.path / "requests.jsonl").read_text()
    assert after.startswith(before)
    assert Counter((row.block, row.attempt) for row in again.requests())[3, 2] == 3
    assert len(again.requests()) == sum(block.requests for block in again.plan.blocks)
    assert [arm.seen for arm in result.cells[0].arms] == [6, 6]


def test_a_finished_run_sends_nothing_more(deployment, tmp_path):
    folder = RunFolder.create(tmp_path / "run", plan_of())
    first = run_experiment(folder, Setup(deployment.url, deployment.store_url), quiet).document()
    sent = len(deployment.prefill.requests)
    second = run_experiment(RunFolder.open(folder.path), Setup(deployment.url, deployment.store_url), quiet)
    assert len(deployment.prefill.requests) == sent
    assert second.document() == first


def test_failing_requests_are_counted_and_left_out(deployment, tmp_path):
    folder = RunFolder.create(tmp_path / "run", plan_of())
    sometimes = iter(range(10**6))

    def every_fifth(request):
        counts = request.body["max_tokens"] > 1  # not the step for P between blocks
        return Reply(status=500) if counts and next(sometimes) % 5 == 4 else Reply()

    deployment.decode.choose_reply = every_fifth
    result = run_experiment(folder, Setup(deployment.url, deployment.store_url), quiet)
    failed = sum(arm.excluded["error: http_500"] for arm in result.cells[0].arms)
    assert failed >= 2
    assert sum(sum(map(len, arm.blocks)) for arm in result.cells[0].arms) == 12 - failed


def test_a_block_that_fails_as_a_whole_stops_the_run_and_does_not_count(deployment, tmp_path):
    folder = RunFolder.create(tmp_path / "run", plan_of())
    said: list[str] = []

    def break_after_three(line: str) -> None:
        said.append(line)
        if len(said) == 3:
            deployment.decode.reply = Reply(status=503)

    with pytest.raises(ExperimentError, match=r"every request of block 3 failed.*503.*--resume") as caught:
        run_experiment(folder, Setup(deployment.url, deployment.store_url), break_after_three)
    assert caught.value.exit_code == 1
    assert sorted(RunFolder.open(folder.path).blocks()) == [0, 1, 2]


def test_a_prompt_beyond_the_models_limit_is_wrong_usage(deployment, tmp_path):
    deployment.prefill.reply = deployment.decode.reply = Reply(
        status=400, body=b'{"error": {"message": "maximum context length is 64 tokens"}}'
    )
    folder = RunFolder.create(tmp_path / "run", plan_of())
    with pytest.raises(ExperimentError, match="maximum context length is 64 tokens") as caught:
        run_experiment(folder, Setup(deployment.url), quiet)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_router_that_ignores_the_mode_header_is_wrong_usage(deploy, tmp_path):
    def try_often(url: str, store_url: str) -> None:
        """The split decides request by request, so it takes a few until one runs in the other mode."""
        for number in range(40):
            folder = RunFolder.create(tmp_path / f"run-{number}", plan_of(requests=1, blocks=1))
            run_experiment(folder, Setup(url, store_url), quiet)

    with deploy(allow_mode_header=False, split={"push": 1, "pull": 1}) as other:
        with pytest.raises(ExperimentError, match="ignores the mode header") as caught:
            try_often(other.url, other.store_url)
        assert caught.value.exit_code == 2


def test_a_mode_that_the_router_does_not_serve_is_wrong_usage(deploy, tmp_path):
    with deploy(allow_mode_header=False, default_mode="push") as other:
        folder = RunFolder.create(tmp_path / "run", plan_of())
        with pytest.raises(ExperimentError, match="does not take mode pull") as caught:
            run_experiment(folder, Setup(other.url), quiet)
        assert caught.value.exit_code == 2


PROBE = {"schema": "kvpath.probe/1", "transport": {}, "results": [], "notes": []}


def test_the_link_is_probed_once_a_folder(deployment, tmp_path):
    calls = []

    def probe(target, plan):
        calls.append((target.model, plan.preset))
        return PROBE

    folder = RunFolder.create(tmp_path / "run", plan_of())
    for _ in range(2):
        result = run_experiment(folder, Setup(deployment.url, probe=probe), quiet)
    assert calls == [("D0", "demo")]
    assert result.document()["probe"] == PROBE


def test_a_probe_that_cannot_be_made_is_a_note(deployment, tmp_path):
    def probe(target, plan):
        raise ExperimentError("no NIXL here")

    folder = RunFolder.create(tmp_path / "run", plan_of())
    result = run_experiment(folder, Setup(deployment.url, probe=probe), quiet)
    assert "no link probe: no NIXL here" in result.measured.notes


def test_a_control_c_just_before_the_first_step_is_an_interrupt():
    """CPython then forgets to count it, and the runner gives a bare cancellation."""

    async def work():
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    with asyncio.Runner() as runner, pytest.raises(KeyboardInterrupt):
        _complete(runner, work())
