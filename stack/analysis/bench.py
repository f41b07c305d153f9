"""Measures how many traces a second the analysis takes: ``python -m stack.analysis.bench``.

The target of 1,000 traces/s refers to ``json_traces_per_s``: OTLP JSON text of one trace at a time, as the store's
API hands it out, through parsing, critical path and completeness. ``memory_traces_per_s`` starts from parsed traces.
Both modes alternate; one thread. ``..._per_cpu_s`` counts this process's processor time instead of the wall clock, so
that it stays comparable on a machine that is busy with something else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from stack.analysis import otlp_json
from stack.analysis.complete import defects
from stack.analysis.critical_path import critical_path
from stack.analysis.synthetic import Figures, pull_trace, push_trace
from stack.analysis.trace import Trace

TARGET_TRACES_PER_S = 1000
T = TypeVar("T")


def run(count: int = 1000, rounds: int = 3) -> dict[str, float | int]:
    """Analyses ``count`` traces ``rounds`` times and returns the best round's rates and the traces' size."""
    traces = [_trace(number) for number in range(1, count + 1)]
    texts = [otlp_json.dumps([trace]) for trace in traces]
    json_rate, json_cpu_rate = _best(_from_json, texts, rounds)
    memory_rate, memory_cpu_rate = _best(_from_memory, traces, rounds)
    return {
        "json_traces_per_s": json_rate,
        "json_traces_per_cpu_s": json_cpu_rate,
        "memory_traces_per_s": memory_rate,
        "memory_traces_per_cpu_s": memory_cpu_rate,
        "target_json_traces_per_s": TARGET_TRACES_PER_S,
        "traces": count,
        "spans_per_trace": round(sum(len(t.spans) for t in traces) / count, 1),
        "bytes_per_trace": round(sum(map(len, texts)) / count),
    }


def _trace(number: int) -> Trace:
    figures = Figures(prefill=(100 + number % 700) * 1_000_000)
    return (push_trace if number % 2 else pull_trace)(figures, number=number)


def _from_memory(trace: Trace) -> None:
    critical_path(trace)
    if found := defects(trace):
        raise AssertionError(f"the synthetic trace is incomplete: {found}")


def _from_json(text: str) -> None:
    (trace,) = otlp_json.parse(text)
    _from_memory(trace)


def _best(step: Callable[[T], None], items: Sequence[T], rounds: int) -> tuple[int, int]:
    """The best round's items per second of wall clock and of processor time."""
    wall, cpu = [], []
    for _ in range(rounds):
        started, used = time.perf_counter(), time.process_time()
        for item in items:
            step(item)
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - used)
    return round(len(items) / min(wall)), round(len(items) / min(cpu))


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
