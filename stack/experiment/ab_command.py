"""compare two modes in interleaved blocks on the same engines, with intervals, and say what the difference means"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from connector import names
from stack.analysis.source import DEFAULT_URL
from stack.analysis.terminal import terminal_of
from stack.experiment.errors import EXIT_FAILED, EXIT_USAGE, ExperimentError
from stack.experiment.plan import Changes, Plan, PlanError, make_plan
from stack.experiment.plan_text import plan_text
from stack.experiment.presets import DEMO, PRESETS, Preset
from stack.experiment.prompts import Line, PromptsError, read_prompts
from stack.experiment.run_folder import PLAN, FolderError, RunFolder
from stack.experiment.target import Asker, Target, TargetError

DEFAULT_ROUTER = "http://127.0.0.1:8000"
NO_TRACES = "none"
T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``kvpath ab``; what is not given is the preset's."""
    parser.add_argument("--preset", metavar="NAME", help=f"one of {', '.join(PRESETS)} ({DEMO.name})")
    parser.add_argument(
        "--router", metavar="URL", help=f"({DEFAULT_ROUTER}; a preset that starts its own engines then starts none)"
    )
    parser.add_argument(
        "--traces", default=None, metavar="URL", help=f"trace store ({DEFAULT_URL}), or {NO_TRACES!r}: no stages then"
    )
    plan = parser.add_argument_group("the plan (instead of the preset's figures)")
    plan.add_argument("--modes", type=_modes, metavar="A,B", help="both arms; push,push compares a mode with itself")
    plan.add_argument("--rates", type=_list_of(float, "numbers"), metavar="R,..", help="requests/s")
    plan.add_argument("--input-tokens", type=_list_of(int, "whole numbers"), metavar="N,..", help="prompt lengths")
    plan.add_argument("--output-tokens", type=int, metavar="N", help="tokens generated a request")
    plan.add_argument("--requests", type=int, metavar="N", help="requests a block")
    plan.add_argument("--blocks", type=int, metavar="N", help="blocks of each arm; an interval needs 6")
    plan.add_argument("--turns", type=int, metavar="N", help="of a conversation; a preset of single requests has 1")
    plan.add_argument("--new-tokens", type=int, metavar="N", help="that each further turn adds")
    plan.add_argument("--gap", type=float, metavar="S", help="between the end of an answer and the next turn")
    plan.add_argument(
        "--prefill-cache",
        choices=("off", "on", "both"),
        help="P's prefix cache: of engines that are started, else said",
    )
    plan.add_argument("--prompts", type=Path, metavar="FILE", help='JSONL of {"prompt": "..", "output_tokens": N}')
    plan.add_argument("--seed", type=int, metavar="N", help="of prompts and arrivals (1)")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and the published values, send nothing")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the run's folder (out/ab/PRESET)")
    parser.add_argument("--resume", action="store_true", help="go on with the folder's experiment")
    probe = parser.add_mutually_exclusive_group()
    probe.add_argument("--probe", type=Path, metavar="FILE", help="a link probe made before: `kvpath probe --json`")
    probe.add_argument("--no-probe", action="store_true", help="leave the link probe out")
    parser.add_argument("--json", action="store_true", help="print the plan or the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Runs the experiment; returns 0, 1 when it could not be finished, 2 for what cannot be run at all."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for `command &`
    try:
        return _run(args)
    except (PlanError, PromptsError, FolderError, TargetError) as error:
        return _complain(str(error), EXIT_USAGE)
    except ExperimentError as error:
        return _complain(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        if error.name not in ("numpy", "scipy"):
            raise
        return _complain(f"the statistics need {error.name}: pip install 'kvpath[experiment]'", EXIT_FAILED)


def _run(args: argparse.Namespace) -> int:
    if args.probe is not None:  # also where nothing is measured: a wrong file is said at once
        from stack.experiment.local_probe import read_probe

        read_probe(args.probe)
    lines: list[Line] = []
    out = args.out or Path("out/ab", args.preset or DEMO.name)
    if args.router is None and args.preset in PRESETS and PRESETS[args.preset].prefill_cache:
        return _run_own_engines(args, PRESETS[args.preset], out)
    args.router = args.router or DEFAULT_ROUTER
    if args.resume:
        folder: RunFolder | None = RunFolder.open(out)
        assert folder is not None
        plan, lines = _resumed(args, folder)
    else:
        folder = None
        plan, lines = _asked(args)
    if args.dry_run:
        print(json.dumps(plan.document(), indent=2) if args.json else plan_text(plan, terminal_of(sys.stdout)))
        return 0
    return _measure(args, plan, lines, folder, out)


def _asked(args: argparse.Namespace) -> tuple[Plan, list[Line]]:
    name = args.preset or DEMO.name
    if name not in PRESETS:
        raise PlanError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    if args.prefill_cache == "both":
        raise PlanError(
            "--prefill-cache both needs engines that are started for it; a running router has one or the other"
        )
    changes, lines = _changes(args)
    return make_plan(PRESETS[name], replace(changes, prefill_cache=args.prefill_cache or "")), lines


def _changes(args: argparse.Namespace) -> tuple[Changes, list[Line]]:
    prompts, lines = read_prompts(args.prompts) if args.prompts is not None else (None, [])
    same = ("modes", "rates", "input_tokens", "output_tokens", "requests", "blocks", "seed", "turns", "new_tokens")
    given = {name: getattr(args, name) for name in same}
    return Changes(**given, prompts=prompts, gap_s=args.gap), lines


def _run_own_engines(args: argparse.Namespace, preset: Preset, out: Path) -> int:
    """One experiment for each state of P's prefix cache, on engines that are started for it; results stay apart."""
    changes, _ = _changes(args)
    caches = preset.prefill_cache if args.prefill_cache in (None, "both") else (args.prefill_cache,)
    if args.dry_run:
        plans = [make_plan(preset, replace(changes, prefill_cache=cache)) for cache in caches]
        if args.json:
            print(json.dumps([plan.document() for plan in plans], indent=2))
        else:
            print("\n\n".join(plan_text(plan, terminal_of(sys.stdout)) for plan in plans))
        return 0
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from stack.engines.model import ModelError
    from stack.engines.processes import DeploymentError, interrupt_on_termination
    from stack.experiment.own_engines import measure_pair, open_folders, pairs_of
    from stack.experiment.result_text import result_text
    from stack.settings_error import one_line

    interrupt_on_termination()
    pairs = pairs_of(preset, changes, caches, out)
    say = _progress(sys.stderr if args.json else sys.stdout)
    documents = []
    try:
        for pair, folder in zip(pairs, open_folders(pairs, args.resume), strict=True):
            say(plan_text(pair.plan, terminal_of(sys.stdout)) + "\n")
            traces, probe = args.traces != NO_TRACES, _probe_of(args, pair.plan)
            result = measure_pair(pair, folder, say, traces=traces, probe=probe, annotate=_annotate())
            documents.append(result.document())
            if not args.json:
                print(f"\n{result_text(result, terminal_of(sys.stdout))}\n\n{folder.path}: everything of this pair\n")
    except (ModelError, DeploymentError) as error:
        raise ExperimentError(str(error)) from error
    except (ValidationError, SettingsError) as error:
        raise ExperimentError(f"KVPATH_*: {one_line(error)}", EXIT_USAGE) from error
    except KeyboardInterrupt:
        return _interrupted(f"--preset {preset.name} --resume --out {out}")
    if args.json:
        print(json.dumps(documents, indent=2))
    return 0


def _resumed(args: argparse.Namespace, folder: RunFolder) -> tuple[Plan, list[Line]]:
    """The folder's plan; options that were given again must not ask for another one."""
    given = (
        *("preset", "modes", "rates", "input_tokens", "output_tokens", "requests", "blocks", "seed"),
        *("turns", "new_tokens", "gap", "prefill_cache"),
    )
    if any(getattr(args, name) is not None for name in given):
        plan, lines = _asked(args)
        if plan != folder.plan:
            raise FolderError(f"{folder.path / PLAN} is another plan than the one asked for; choose another --out")
        return plan, lines
    wanted = folder.plan.prompts
    if wanted is None:
        return folder.plan, []
    if args.prompts is None:
        raise PlanError(f"this experiment's prompts come from a file: give it again with --prompts {wanted.name}")
    prompts, lines = read_prompts(args.prompts)
    if prompts.sha256 != wanted.sha256:
        raise FolderError(f"{args.prompts} is not the file that {folder.path} was begun with; choose another --out")
    return folder.plan, lines


def _measure(args: argparse.Namespace, plan: Plan, lines: list[Line], folder: RunFolder | None, out: Path) -> int:
    # These need numpy and scipy.
    from stack.experiment.result_text import result_text
    from stack.experiment.run import Setup, run_experiment

    probe = _probe_of(args, plan)
    if folder is None:
        with Asker(args.router) as asker:
            asker.target()  # before a folder is made
        folder = RunFolder.create(out, plan)
    say = _progress(sys.stderr if args.json else sys.stdout)
    say(plan_text(plan, terminal_of(sys.stdout)) + "\n")
    traces = None if args.traces == NO_TRACES else args.traces or DEFAULT_URL
    try:
        result = run_experiment(folder, Setup(args.router, traces, lines, probe, annotate=_annotate()), say)
    except KeyboardInterrupt:
        return _interrupted(f"--resume --out {folder.path}")
    if args.json:
        print(json.dumps(result.document(), indent=2))
    else:
        print("\n" + result_text(result, terminal_of(sys.stdout)))
        print(f"\n{folder.path}: plan, environment, every request, result.json")
    return 0


def _probe_of(args: argparse.Namespace, plan: Plan) -> Callable[[Target, Plan], Mapping[str, Any]] | None:
    from stack.experiment.local_probe import local_probe, read_probe

    if args.probe is not None:
        probed = read_probe(args.probe)
        return lambda *_: probed
    return None if args.no_probe or len(set(plan.modes)) == 1 else local_probe


def _annotate() -> Callable[..., Any] | None:
    from stack.grafana.annotate import annotator_from_environment

    annotator = annotator_from_environment()
    return annotator.annotate if annotator is not None else None


def _interrupted(again: str) -> int:
    warnings.simplefilter("ignore", RuntimeWarning)  # of a coroutine that the interrupt kept from starting
    return _complain(f"interrupted; finished blocks are kept: {again}", EXIT_FAILED)


def _progress(stream: object) -> Callable[[str], None]:
    return lambda line: print(line, file=stream, flush=True)  # type: ignore[call-overload]


def _complain(problem: str, status: int) -> int:
    print(f"kvpath ab: {problem}", file=sys.stderr)
    return status


def _modes(text: str) -> tuple[str, str]:
    modes = tuple(part.strip() for part in text.split(","))
    known = names.TRANSFER_MODES
    if len(modes) != 2 or not set(modes) <= set(known):
        raise argparse.ArgumentTypeError(f"{text!r} is not two of {', '.join(known)}, such as push,pull")
    return modes[0], modes[1]


def _list_of(kind: Callable[[str], T], what: str) -> Callable[[str], tuple[T, ...]]:
    def parse(text: str) -> tuple[T, ...]:
        try:
            return tuple(kind(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of {what} such as 1,2,4") from None

    return parse
