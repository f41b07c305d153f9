"""measure push, pull, reuse and the cost of tracing on GPUs, arm by arm

``python -m stack.experiment.gpu --all`` on a host with a CUDA device, vLLM and NIXL: both engines share one GPU. With
``--gpus 2`` (or more) prefill and decode have GPUs of their own, a 32B model, and reuse is measured as well.

Every arm starts its own engines, probes the link, compares greedy texts, runs the experiment, and stops the engines.
What is finished is not done again: ``--work`` keeps it, block by block, so that a run that hits ``--time-limit`` goes
on where it ended, and ``--restore`` takes it over from what another machine packed. What an arm gave lies in
``--out`` whenever it ends, for whatever reason: NAME.tar.gz has everything, NAME.json the figures.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from stack.analysis.trace_input import positive
from stack.engines.model import ModelError
from stack.engines.processes import DeploymentError, interrupt_on_termination
from stack.engines.up import Progress
from stack.experiment.client import RequestError
from stack.experiment.errors import ExperimentError
from stack.experiment.gpu_arms import ARMS, TRACING
from stack.experiment.gpu_host import Say, TimeIsUp, pack, time_limit, unpack
from stack.experiment.gpu_result import write_result
from stack.experiment.gpu_several import SEVERAL_ARMS, placement_of, several_arm
from stack.experiment.gpu_tracing import tracing_arm
from stack.experiment.gpu_transport import transport_arm
from stack.experiment.run_folder import FolderError
from stack.experiment.site_check import site_check
from stack.experiment.target import TargetError

EXIT_FAILED, EXIT_USAGE = 1, 2
STOP_S = 30.0  # of the time limit, for stopping engines and packing
LEAST_S = 100.0  # an arm is not begun with less
DONE = "done.json"
ORDER = ("default-16", "host-16", TRACING, "default-64", "tcp-16", "host-64", "tcp-64")  # on one GPU
ORDER_OF_SEVERAL = tuple(SEVERAL_ARMS)
EVERY_ARM = (*ORDER, *ORDER_OF_SEVERAL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument("--site-check", action="store_true", help="check packages, GPU, vLLM, NIXL; start no engine")
    what.add_argument("--arm", action="append", choices=EVERY_ARM, metavar="NAME", help=f"{', '.join(EVERY_ARM)}")
    what.add_argument("--all", action="store_true", help="every arm for that number of GPUs, in this order")
    where = parser.add_argument_group("where")
    where.add_argument("--out", type=Path, default=Path("out/gpu"), metavar="DIR", help="packed results (out/gpu)")
    where.add_argument("--work", type=Path, default=Path("/tmp/kvpath-gpu"), metavar="DIR", help="kept between runs")
    where.add_argument("--restore", type=Path, metavar="DIR", help="packed results of an earlier run, to go on from")
    where.add_argument("--tokenizer", type=Path, metavar="DIR", help="with SmolLM2's tokenizer.json")
    gpus = parser.add_argument_group("GPUs of the host")
    gpus.add_argument("--gpus", type=positive, default=1, metavar="N", help="to use (1: both engines share it)")
    gpus.add_argument("--prefill-tp", type=positive, metavar="N", help="tensor-parallel size of P (half of the GPUs)")
    gpus.add_argument("--decode-tp", type=positive, metavar="N", help="of D (half of the GPUs)")
    gpus.add_argument("--own-gpus-only", action="store_true", help="hide the other engine's GPUs from each engine")
    how = parser.add_argument_group("how")
    how.add_argument("--time-limit", type=float, metavar="S", help="everything has ended by then")
    how.add_argument("--weights", choices=("random", "dummy"), default="random", help="dummy: texts prove nothing")
    how.add_argument("--layers", type=positive, metavar="N", help="of the model (its own number)")
    how.add_argument("--blocks", type=int, metavar="N", help="of each mode in each combination (6)")
    how.add_argument("--loads", type=int, metavar="N", help="only the first N combinations")
    how.add_argument("--probe-tokens", type=int, default=4096, metavar="N", help="(4096)")
    how.add_argument("--probe-repetitions", type=int, default=3, metavar="N", help="(3)")
    how.add_argument("--text-prompts", type=int, default=2, metavar="N", help="prompts of 16k tokens (2); 0: no check")
    how.add_argument("--rounds", type=int, default=30, metavar="N", help="of the tracing arm (30)")
    how.add_argument(
        "--engine-arg", action="append", default=[], metavar="ARG", help="to both engines, such as =--enforce-eager"
    )
    how.add_argument("--upstream-tracing", action="store_true", help="vLLM's own tracing in the baseline, too")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m stack.experiment.gpu", description=(__doc__ or "").splitlines()[0])
    add_arguments(parser)
    args = parser.parse_args(argv)
    if args.site_check:
        return site_check(args.tokenizer)
    arms = list(ORDER if args.gpus == 1 else ORDER_OF_SEVERAL) if args.all else args.arm
    if not arms:
        parser.error("name an --arm, or --all, or --site-check")
    if set(arms) & set(ORDER_OF_SEVERAL):
        try:
            placement_of(args)
        except ValueError as error:
            parser.error(str(error))
    interrupt_on_termination()
    say = Progress()
    deadline = None if args.time_limit is None else time.monotonic() + args.time_limit - STOP_S
    try:
        with time_limit(deadline):
            return _run_arms(args, arms, deadline, say)
    except TimeIsUp:
        say("the time limit: nothing is left running; the same command goes on from here")
    except KeyboardInterrupt:
        say("interrupted; nothing is left running")
    return EXIT_FAILED


def _run_arms(args: argparse.Namespace, arms: Sequence[str], deadline: float | None, say: Say) -> int:
    if importlib.util.find_spec("flashinfer") is None:  # vLLM's sampler imports it on this GPU unless told not to
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    args.out.mkdir(parents=True, exist_ok=True)
    status = 0
    for name in arms:
        folder = args.work / name
        unpack(folder, args.restore)
        if (folder / DONE).exists():
            say(f"{name}: done before")
            _give(folder, args.out)
            continue
        if deadline is not None and deadline - time.monotonic() < LEAST_S:
            say(f"{name}: not begun, less than {LEAST_S:.0f} s are left")
            status = EXIT_FAILED
            continue
        say(f"=== {name}")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _arm(args, name, folder, say)
            (folder / DONE).write_text(json.dumps({"arm": name, "ended": time.time()}))
        except (DeploymentError, ModelError, ExperimentError, TargetError, FolderError, RequestError) as error:
            say(f"{name}: {error}")
            status = EXIT_FAILED
        finally:
            _give(folder, args.out)
    return status


def _give(folder: Path, out: Path) -> None:
    """Everything that was recorded, and the figures as one readable document."""
    pack(folder, out)
    write_result(folder, out)


def _arm(args: argparse.Namespace, name: str, folder: Path, say: Say) -> None:
    if name == TRACING:
        tracing_arm(args, folder, say)
    elif name in SEVERAL_ARMS:
        several_arm(args, SEVERAL_ARMS[name], folder, say)
    else:
        transport_arm(args, ARMS[name], folder, say)


if __name__ == "__main__":
    sys.exit(main())
