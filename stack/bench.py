"""measure what telemetry, router, store and analysis cost on this machine

Runs every part's own benchmark, prints the figures that have a target beside it, and writes all of them to a file.
A machine that is busy measures its own load: the load average is printed and stored with the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from connector import bench as connector_bench
from stack.analysis import bench as analysis_bench
from stack.engines.processes import interrupt_on_termination
from stack.router import bench as router_bench
from stack.store import bench as store_bench

EXIT_FAILED = 1


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure and its target; ``at_least`` tells which side of the target is the good one."""

    name: str
    value: float
    unit: str
    target: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.target if self.at_least else self.value <= self.target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"), help="where the figures go")


def run(args: argparse.Namespace) -> int:
    """Returns 0 whether or not targets are met: a figure is reported, not judged; 1 when there is no place for them."""
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.open("a").close()  # now, not after minutes of measuring
    except OSError as error:
        print(f"kvpath bench: cannot write {args.out}: {error.strerror}; choose another --out", file=sys.stderr)
        return EXIT_FAILED
    interrupt_on_termination()  # the benchmarks then end what they have started
    machine = describe_machine()
    print(f"{machine['name']}: {machine['processor']}, {machine['cores']} cores, load {machine['load'][0]:.1f}\n")
    parts: dict[str, Any] = {}
    for name, measure in (
        ("connector", connector_bench.run),
        ("router", router_bench.measure),
        ("store", store_bench.run_bench),
        ("analysis", analysis_bench.run),
    ):
        print(f"measuring {name} ...", flush=True)
        parts[name] = measure()
    figures = with_targets(parts)
    print("\n" + table(figures))
    report = {
        "machine": machine,
        "load_after": os.getloadavg(),
        "figures": [asdict(figure) | {"met": figure.met} for figure in figures],
        "parts": parts,
    }
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\nall figures: {args.out}")
    return 0


def describe_machine() -> dict[str, Any]:
    """Returns name, processor, cores, kernel, Python and load of this machine."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "name": platform.node(),
        "processor": models[0].split(":", 1)[1].strip() if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }


def with_targets(parts: dict[str, Any]) -> list[Figure]:
    """Picks the figures that have a target. Times of engine threads are for the busier of P and D."""
    connector, router, store, analysis = (parts[name] for name in ("connector", "router", "store", "analysis"))
    figures = [Figure("one fact on the hot path, p50", connector["fact_ns_p50"] / 1000, "us", 3)]
    for mode in ("push", "pull"):
        busier = max(connector[f"request_us_{mode}_{side}"] for side in ("prefill", "decode"))
        figures.append(Figure(f"engine threads per request, {mode}", busier, "us", 50))
    for mode in ("push", "pull", "reuse"):
        added = router["ttft"][f"{mode}_concurrency_1"]["added_p50_ms"]
        figures.append(Figure(f"TTFT added by the router, {mode}", added, "ms", 2))
    reuse = router["reuse"]
    figures.append(Figure("reuse: lookup in the router's process, p50", reuse["lookup_process_p50_us"], "us", 100))
    if reuse["lookup_redis_p50_us"] is not None:
        figures.append(Figure("reuse: lookup through Redis, p50", reuse["lookup_redis_p50_us"], "us", 1000))
    memory_mb = reuse["table_bytes"] / reuse["conversations"] * 100_000 / 1e6
    return [
        *figures,
        Figure("reuse: memory of 100,000 conversations", memory_mb, "MB", 50),
        Figure("SSE chunks through one router", router["sse_chunks_per_s"], "/s", 8_000, at_least=True),
        Figure("spans into the store", store["spans_per_second"], "/s", 10_000, at_least=True),
        Figure("traces through the analysis", analysis["json_traces_per_s"], "/s", 1_000, at_least=True),
    ]


def table(figures: list[Figure]) -> str:
    """Returns one line a figure: measured, target, and whether it is met."""
    lines = [f"{'figure':<40} {'measured':>12} {'target':>12}"]
    for figure in figures:
        bound = ">=" if figure.at_least else "<="
        verdict = "" if figure.met else "  missed"
        measured, target = f"{figure.value:,.1f} {figure.unit}", f"{bound} {figure.target:,.0f} {figure.unit}"
        lines.append(f"{figure.name:<40} {measured:>12} {target:>12}{verdict}")
    return "\n".join(lines)
