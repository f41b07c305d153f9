"""start both engines, router and trace store; send requests in both modes; show where their time went"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from pydantic import ValidationError
from pydantic_settings import SettingsError

from connector import names
from stack.analysis import otlp_json, report_command
from stack.analysis.source import SourceError
from stack.analysis.terminal import terminal_of
from stack.demo.client import Answer, RequestError, stream_completion
from stack.demo.evidence import Sent
from stack.demo.prompts import Prompt, demo_prompts, interleaved
from stack.demo.result import DemoResult, evidence_lines, make_result, write_result
from stack.engines.command_line import engine_argv
from stack.engines.launch import STORE_FILE, RunningStack, running_stack
from stack.engines.model import ModelError
from stack.engines.processes import DeploymentError, interrupt_on_termination
from stack.engines.settings import DeploymentSettings
from stack.engines.up import (
    EXIT_FAILED,
    EXIT_USAGE,
    Progress,
    add_deployment_arguments,
    settings_from,
)
from stack.experiment.collect import collect_traces
from stack.experiment.errors import ExperimentError
from stack.experiment.local_probe import local_probe
from stack.experiment.plan import make_plan
from stack.experiment.presets import DEMO
from stack.experiment.result import Result
from stack.experiment.result_text import result_text
from stack.experiment.run import Setup, run_experiment
from stack.experiment.run_folder import FolderError, RunFolder
from stack.experiment.step import step_engine
from stack.experiment.target import TargetError
from stack.own_command import own_command
from stack.settings_error import one_line

EXPERIMENT_FOLDER = "ab"
DEFAULT_REQUESTS = 12  # a mode
PLAIN_RUNS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_deployment_arguments(parser, run_dir=Path("out/demo"))
    parser.add_argument(
        "--requests", type=int, default=DEFAULT_REQUESTS, help=f"requests a mode ({DEFAULT_REQUESTS})", metavar="N"
    )


def run(args: argparse.Namespace) -> int:
    interrupt_on_termination()
    say = Progress()
    if args.requests < 1:
        print("kvpath demo: --requests must be at least 1", file=sys.stderr)
        return EXIT_USAGE
    try:
        settings = settings_from(args).model_copy(update={"keep_traces": False})
        result, experiment = _measure(settings, args.requests, say)
    except KeyboardInterrupt:
        say("interrupted; nothing is left running")
        return EXIT_FAILED
    except (DeploymentError, ModelError, RequestError, SourceError, ExperimentError, TargetError, FolderError) as error:
        print(f"kvpath demo: {error}", file=sys.stderr)
        return EXIT_FAILED
    except (ValidationError, SettingsError) as error:
        print(f"kvpath demo: {one_line(error)}", file=sys.stderr)
        return EXIT_USAGE
    return _show(settings, result, experiment, say)


def _measure(settings: DeploymentSettings, count: int, say: Progress) -> tuple[DemoResult, Result | None]:
    with running_stack(settings, say) as stack:
        prompts = demo_prompts(Path(stack.prefill.model), count)
        say("the requests so far paid for handshakes and first-time allocations; they are not counted")
        plan = interleaved(prompts, stack.modes)
        say(f"sending {len(plan)} requests, one at a time, {' and '.join(stack.modes)} in turn (ABBA)")
        sent = [_send(stack, mode, prompt, f"{n}/{len(plan)}", say) for n, (mode, prompt) in enumerate(plan, 1)]
        say("control: the same prompts twice on the decode engine alone, without transfer")
        plain = [[_send_plain(stack, prompt) for prompt in prompts] for _ in range(PLAIN_RUNS)]
        step_engine(stack.prefill.url, stack.settings.model_name)  # P frees the blocks of the last pull
        say("fetching the traces")
        traces = collect_traces(settings.store_url, [each.answer.trace_id for each in sent], say)
        otlp_json.write_file(settings.run_dir / "traces.json", traces)
        experiment = _compare(stack, say) if len(stack.modes) > 1 else None
    result = make_result(sent, plain, traces)
    context = {
        "model": settings.model_name,
        "requests_a_mode": count,
        "order": "interleaved, ABBA, one at a time",
        "excluded": f"{len(stack.modes)} warm-up requests (handshakes), one a mode, before the first that counts",
        "settings": settings.model_dump(mode="json"),
    }
    write_result(settings.run_dir / "result.json", result, context)
    return result, experiment


def _compare(stack: RunningStack, say: Progress) -> Result:
    """The interleaved A/B on the same engines: open-loop arrivals, blocks in ABBA order, the link probed first."""
    folder = stack.settings.run_dir / EXPERIMENT_FOLDER
    shutil.rmtree(folder, ignore_errors=True)  # an earlier demo's
    plan = make_plan(DEMO)
    say(f"A/B: {len(plan.blocks)} blocks, {' and '.join(plan.arms)} interleaved, with Poisson arrivals")
    extra = {"engines": {spec.engine_id: list(engine_argv(spec)) for spec in (stack.prefill, stack.decode)}}
    setup = Setup(stack.settings.router_url, stack.settings.store_url, probe=local_probe, extra=extra)
    return run_experiment(RunFolder.create(folder, plan), setup, say)


def _send(stack: RunningStack, mode: str, prompt: Prompt, position: str, say: Progress) -> Sent:
    headers = {names.HEADER_MODE: mode}
    try:
        answer = stream_completion(stack.settings.router_url, stack.settings.model_name, prompt.text, headers)
    except RequestError as error:
        stack.deployment.check()  # a part that has died is the better explanation
        raise RequestError(f"request {position} ({mode}): {error}") from error
    ttft_ms, total_ms = answer.ttft_ns / 1e6, answer.duration_ns / 1e6
    length = f"{answer.prompt_tokens:4d} tokens"
    say(f"{position:>5} {mode:<4} {length}: first after {ttft_ms:6.0f} ms, all after {total_ms:6.0f} ms")
    return Sent(mode, prompt, answer)


def _send_plain(stack: RunningStack, prompt: Prompt) -> Answer:
    stack.deployment.check()
    return stream_completion(stack.decode.url, stack.settings.model_name, prompt.text)


def _show(settings: DeploymentSettings, result: DemoResult, experiment: Result | None, say: Progress) -> int:
    traces = settings.run_dir / "traces.json"
    say("everything is stopped; one request at a time, stage by stage:\n")
    _print_comparison(traces)
    print("\n" + "\n".join(evidence_lines(result)))
    if experiment is not None:
        print("\nThe interleaved A/B, with intervals:\n\n" + result_text(experiment, terminal_of(sys.stdout)))
    if result.problems:
        print("\nThis run is not to be believed as it is:\n  " + "\n  ".join(result.problems))
    slowest = max(result.sent, key=lambda each: each.answer.ttft_ns)
    print(look_further(settings.run_dir, slowest.answer.trace_id, experiment is not None))
    return EXIT_FAILED if result.problems else 0


def look_further(run_dir: Path, slowest: str, compared: bool) -> str:
    """What there is to see of a demo that has ended; every command works as it is printed."""
    kvpath, traces, experiment = own_command(), run_dir / "traces.json", run_dir / EXPERIMENT_FOLDER
    view = f"{kvpath} view --traces {traces}" + (f" --result {experiment}" if compared else "")
    lines = {
        f"{kvpath} report --traces {traces}": "this comparison again; --json for machines",
        f"{kvpath} trace {slowest} --traces {traces}": "the slowest request, span by span",
        view: "all of it as a page; prints its address",
        f"{kvpath} up": "the same deployment, for requests of your own",
        f"{run_dir}/result.json": "every request's stages, and what was checked",
        f"{run_dir}/{STORE_FILE}": "every trace, also the A/B's; --traces takes it, too; the next demo removes it",
        f"{run_dir}/logs/": "what every process said",
    }
    if compared:
        lines[f"{experiment}/"] = "the A/B: plan, probe, requests, result"
    return "\nLook further:\n" + "\n".join(f"  {what}\n      {how}" for how, what in lines.items()) + "\n"


def _print_comparison(traces: Path) -> None:
    """Prints what ``kvpath report --traces FILE`` prints: what the user gets here is what there is to get later."""
    parser = argparse.ArgumentParser()
    report_command.add_arguments(parser)
    report_command.run(parser.parse_args(["--traces", str(traces)]))
