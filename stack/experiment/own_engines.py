"""Experiments that start their own engines, a pair at a time: what they compare is decided when engines start.

Mode reuse saves most where P has lost a conversation's context, and nothing where P still has it in its own prefix
cache. So the preset measures both: one pair of engines with P's prefix cache off, one with it on. D's is off in both,
or it would find the turn before by itself, and pull less. Each is an experiment of its own, in a folder of its own,
with a result of its own: the two are printed one after the other and never merged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stack.engines.command_line import KEPT_TTL_S
from stack.engines.launch import running_stack
from stack.engines.settings import DeploymentSettings
from stack.experiment.errors import EXIT_USAGE, ExperimentError
from stack.experiment.gpu_host import engines_of
from stack.experiment.plan import Changes, Plan, make_plan
from stack.experiment.presets import PREFILL_CACHE_ON, Preset
from stack.experiment.result import Result
from stack.experiment.run import Probe, Setup, run_experiment
from stack.experiment.run_folder import PLAN, FolderError, RunFolder

ENGINES = "engines"  # logs, traces and router configuration, in the experiment's folder
Say = Callable[[str], None]
Annotate = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """One pair of engines and the experiment on it."""

    plan: Plan
    folder: Path

    def settings(self) -> DeploymentSettings:
        """What is not said here comes from ``KVPATH_*``, as for ``kvpath up``."""
        return DeploymentSettings(
            run_dir=self.folder / ENGINES,
            prefix_caching=False,
            prefill_prefix_caching=self.plan.prefill_cache == PREFILL_CACHE_ON,
            kept_ttl_s=kept_ttl_s(self.plan),
        )


def kept_ttl_s(plan: Plan) -> int:
    """vLLM's own, or longer where the gap between turns comes near to it."""
    longest = max(cell.gap_s for cell in plan.cells)
    return max(KEPT_TTL_S, math.ceil(2 * longest))


def pairs_of(preset: Preset, changes: Changes, caches: Sequence[str], out: Path) -> list[Pair]:
    """One pair of engines for each of ``caches`` ("off", "on"); raises ``PlanError``."""
    plans = [make_plan(preset, replace(changes, prefill_cache=cache)) for cache in caches]
    return [Pair(plan, out / f"prefill-cache-{plan.prefill_cache}") for plan in plans]


def open_folders(pairs: Sequence[Pair], resume: bool) -> list[RunFolder]:
    """Opens or makes the folders, all before any engine is started; raises :class:`FolderError`."""
    folders = []
    for pair in pairs:
        if resume and (pair.folder / PLAN).exists():
            folder = RunFolder.open(pair.folder)
            if folder.plan != pair.plan:
                raise FolderError(f"{pair.folder / PLAN} is another plan than the one asked for; choose another --out")
            folders.append(folder)
        else:
            folders.append(RunFolder.create(pair.folder, pair.plan))
    return folders


def measure_pair(
    pair: Pair, folder: RunFolder, say: Say, *, traces: bool, probe: Probe | None, annotate: Annotate | None
) -> Result:
    """Starts the engines, measures, stops them; a finished experiment starts nothing.

    Raises :class:`ExperimentError`, also for engines that cannot be started.
    """
    if all(map(folder.finished, pair.plan.blocks)):
        return run_experiment(folder, Setup("", None), say)
    settings = pair.settings()
    if settings.connector not in ("switch", "pull"):
        raise ExperimentError(f"connector {settings.connector!r} cannot serve reuse; use switch or pull", EXIT_USAGE)
    say(f"P's prefix cache {pair.plan.prefill_cache}: starting a pair of engines")
    with running_stack(settings, say) as stack:
        setup = Setup(
            settings.router_url,
            settings.store_url if traces else None,
            probe=probe,
            extra={"prefill_cache": pair.plan.prefill_cache, "engines": engines_of(stack)},
            annotate=annotate,
        )
        return run_experiment(folder, setup, say)
