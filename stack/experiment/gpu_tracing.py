"""The arm of the GPU measurements that says what tracing costs: three deployments on one GPU at the same time."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from stack.engines.launch import RunningStack, running_stacks
from stack.experiment.client import new_session
from stack.experiment.gpu_arms import VARIANTS, variant_settings
from stack.experiment.gpu_host import REQUEST_TIMEOUT_S, Say, engines_of, gpu, model_of, with_engine_args
from stack.experiment.overhead import ROWS, OverheadPlan, costs, measure_overhead, overhead_document, read_rows

OVERHEAD = "overhead.json"


def tracing_arm(args: argparse.Namespace, folder: Path, say: Say) -> None:
    model = model_of(args, say, weights=False)
    plan = OverheadPlan(rounds=args.rounds)
    several = [
        with_engine_args(
            variant_settings(model, folder, upstream_tracing=args.upstream_tracing, number=number, variant=variant),
            args.engine_arg,
        )
        for number, variant in enumerate(VARIANTS)
    ]
    rows = folder / ROWS

    async def measure(stacks: Sequence[RunningStack]) -> None:
        routers = {variant: stack.settings.router_url for variant, stack in zip(VARIANTS, stacks, strict=True)}
        async with new_session(REQUEST_TIMEOUT_S) as session:
            await measure_overhead(session, routers, several[0].model_name, plan, rows, say)

    try:
        with running_stacks(several, say) as stacks:
            engines = {variant: engines_of(stack) for variant, stack in zip(VARIANTS, stacks, strict=True)}
            about = {"gpu": gpu(), "upstream_tracing": args.upstream_tracing, "engines": engines}
            (folder / "environment.json").write_text(json.dumps(about, indent=2))
            asyncio.run(measure(stacks))
    finally:
        found = costs(read_rows(rows), tuple(VARIANTS), plan)
        (folder / OVERHEAD).write_text(json.dumps(overhead_document(found, plan), indent=2))
        for cost in found:
            say(str(cost))
