"""One arm of the GPU measurements that compares push and pull: engines, texts, probe, experiment."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from stack.analysis import otlp_json
from stack.analysis.terminal import Terminal
from stack.engines.launch import RunningStack, running_stack
from stack.experiment.client import new_session
from stack.experiment.errors import ExperimentError
from stack.experiment.gpu_arms import Arm
from stack.experiment.gpu_host import REQUEST_TIMEOUT_S, Say, engines_of, gpu, model_of, with_engine_args
from stack.experiment.plan import Changes, make_plan
from stack.experiment.presets import Preset
from stack.experiment.result import Result
from stack.experiment.result_text import result_text
from stack.experiment.run import Setup, result_of, run_experiment
from stack.experiment.run_folder import PLAN, RESULT, RunFolder
from stack.experiment.same_text import same_text
from stack.experiment.target import Target
from stack.probe import BlockShape, run_probe

SETTLE_S = 3.0  # for late spans after a block
TEXT_TOKENS, TEXT_OUTPUT_TOKENS = 16384, 64
CHECK, CHECK_TRACES, OTHER_PROBES, RESULT_TEXT = (
    "same-text.json",
    "same-text-traces.json",
    "probe-other-block-sizes.json",
    "result.txt",
)
WIDE = Terminal(120, color=False, unicode=True)


def transport_arm(args: argparse.Namespace, arm: Arm, folder: Path, say: Say) -> None:
    model = model_of(args, say)
    settings = with_engine_args(arm.settings(model, folder, args.weights == "dummy"), args.engine_arg)
    with running_stack(settings, say) as stack:
        if args.text_prompts and not (folder / CHECK).exists():
            _check_text(args, stack, folder, say)
        compare(args, arm, stack, folder, say)


def _check_text(args: argparse.Namespace, stack: RunningStack, folder: Path, say: Say) -> None:
    settings = stack.settings

    async def check() -> Any:
        async with new_session(REQUEST_TIMEOUT_S) as session:
            return await same_text(
                session,
                settings.router_url,
                settings.model_name,
                store=settings.store_url,
                prompts=args.text_prompts,
                input_tokens=TEXT_TOKENS,
                output_tokens=TEXT_OUTPUT_TOKENS,
                say=say,
            )

    found, traces = asyncio.run(check())
    otlp_json.write_file(folder / CHECK_TRACES, traces)
    (folder / CHECK).write_text(json.dumps(found.document() | {"weights": args.weights}, indent=2))
    say(str(found))


class Measured(Protocol):
    """What an arm says of its experiment and its link."""

    @property
    def summary(self) -> str: ...
    @property
    def block_size(self) -> int: ...
    @property
    def probe_sizes(self) -> tuple[int, ...]: ...
    @property
    def ucx_tls(self) -> str | None: ...
    @property
    def probe_device(self) -> str: ...
    @property
    def prefill_cache(self) -> str: ...
    def preset(self) -> Preset: ...


def compare(
    args: argparse.Namespace,
    arm: Measured,
    stack: RunningStack,
    folder: Path,
    say: Say,
    *,
    decode_device: str | None = None,
    ranks: int = 1,
) -> None:
    """Runs the arm's experiment, or goes on with it; ``decode_device``: for the probe, if D has GPUs of its own."""
    path = folder / "ab"
    plan = make_plan(preset_of(args, arm), Changes(blocks=args.blocks, prefill_cache=arm.prefill_cache))
    run_folder = RunFolder.open(path) if (path / PLAN).exists() else RunFolder.create(path, plan)
    settings = stack.settings
    setup = Setup(
        router=settings.router_url,
        traces=settings.store_url,
        probe=lambda target, plan: probe(args, arm, target, folder, decode_device, ranks),
        extra={"arm": arm.summary, "weights": args.weights, "gpu": gpu(), "engines": engines_of(stack)},
        settle_s=SETTLE_S,
    )
    try:
        result = run_experiment(run_folder, setup, say)
    except KeyboardInterrupt:
        if run_folder.blocks():
            result = result_of(run_folder)
            run_folder.write(RESULT, result.document())
            _write_text(folder, result)
        raise
    _write_text(folder, result)
    print(result_text(result, WIDE), flush=True)


def preset_of(args: argparse.Namespace, arm: Measured) -> Preset:
    """The arm's preset, with the first ``--loads`` of its combinations only."""
    preset = arm.preset()
    if args.loads is None:
        return preset
    return replace(preset, loads=preset.loads[: args.loads], input_tokens=preset.input_tokens[: args.loads])


def _write_text(folder: Path, result: Result) -> None:
    (folder / RESULT_TEXT).write_text(result_text(result, WIDE) + "\n")


def probe(
    args: argparse.Namespace,
    arm: Measured,
    target: Target,
    folder: Path,
    decode_device: str | None = None,
    ranks: int = 1,
) -> Mapping[str, Any]:
    """Measures the arm's transport with its block size (returned), and with the other sizes (into a file).

    ``ranks``: P's tensor-parallel size; the probe moves what one rank moves.
    """
    if target.model_path is None:
        raise ExperimentError("the router does not say which directory the engines serve")
    found: Mapping[str, Any] = {}
    others: dict[str, Any] = {}
    with transports(arm.ucx_tls):
        for size in arm.probe_sizes:
            shape = BlockShape.from_model_config(target.model_path, block_size=size, tensor_parallel_size=ranks)
            try:
                one = run_probe(
                    shape,
                    args.probe_tokens,
                    args.probe_repetitions if size == arm.block_size else 1,
                    device=arm.probe_device,
                    decode_device=decode_device,
                    progress_delay_us=None,  # NIXL's threads spin in engines on a GPU, whatever the buffers are
                )
            except Exception as error:  # whatever NIXL raises: an experiment without a probe is worth more than none
                if size == arm.block_size:
                    raise ExperimentError(f"the probe failed: {' '.join(str(error).split())}") from error
                one = {"error": str(error)}
            if size == arm.block_size:
                found = one
            else:
                others[str(size)] = one
    if others:
        (folder / OTHER_PROBES).write_text(json.dumps(others, indent=2))
    return found


@contextmanager
def transports(ucx_tls: str | None) -> Iterator[None]:
    """Inside, processes that are started see ``UCX_TLS``."""
    before = os.environ.get("UCX_TLS")
    if ucx_tls is not None:
        os.environ["UCX_TLS"] = ucx_tls
    try:
        yield
    finally:
        if ucx_tls is not None:
            os.environ.pop("UCX_TLS")
        if before is not None:
            os.environ["UCX_TLS"] = before
