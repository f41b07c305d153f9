"""What the demo leaves behind and prints, from what its client saw and what the traces say."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.analysis.compare import Analysed, analyse_all
from stack.analysis.trace import Trace
from stack.demo.client import Answer
from stack.demo.evidence import Agreement, Sent, Texts, agreement, as_plain, compare_texts, request_record


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything that result.json holds, and the exit status's reasons."""

    sent: tuple[Sent, ...]
    analysed: Mapping[str, Analysed]  # by trace id
    agreement: Mapping[str, Agreement]
    texts: Texts

    @property
    def problems(self) -> list[str]:
        """What makes this run unfit to be believed; empty when nothing does."""
        found: list[str] = []
        missing = [each for each in self.sent if each.answer.trace_id not in self.analysed]
        if missing:
            found.append(f"{len(missing)} of {len(self.sent)} requests have no trace")
        defects = Counter(str(defect) for item in self.analysed.values() for defect in item.defects)
        found += [f"{count} traces are incomplete: {defect}" for defect, count in defects.most_common(8)]
        excluded = Counter(item.excluded for item in self.analysed.values() if item.excluded)
        found += [f"{count} requests are not in the figures: {reason}" for reason, count in excluded.items()]
        return found


def make_result(sent: Sequence[Sent], plain: Sequence[Sequence[Answer]], traces: Sequence[Trace]) -> DemoResult:
    analysed = {item.trace_id: item for item in analyse_all(traces)}
    return DemoResult(tuple(sent), analysed, agreement(sent, analysed), compare_texts(sent, plain))


def write_result(path: Path, result: DemoResult, context: Mapping[str, Any]) -> None:
    """Writes result.json whole or not at all. ``context`` says what was run: model, settings, excluded requests."""
    document = {
        "machine": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
        },
        **context,
        "problems": result.problems,
        "ttft_client_minus_trace": as_plain(result.agreement),
        "texts": as_plain(result.texts),
        "requests": [request_record(each, result.analysed.get(each.answer.trace_id)) for each in result.sent],
    }
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(document, indent=2) + "\n")
    partial.replace(path)


def evidence_lines(result: DemoResult) -> list[str]:
    """Returns the printed summary of what the demo checked."""
    lines = ["Client and traces (TTFT, p50):"]
    for mode, each in result.agreement.items():
        lines.append(
            f"  {mode:<5} client {each.client_p50_ms:8.1f} ms   trace {each.trace_p50_ms:8.1f} ms   "
            f"client minus trace: p50 {each.difference_p50_ms:.2f} ms, largest {each.difference_max_ms:.2f} ms "
            f"({each.requests} requests)"
        )
    texts = result.texts
    lines.append(f"Greedy text of {texts.prompts} prompts, against one engine without transfer:")
    for mode, count in texts.differ_from_plain.items():
        lines.append(f"  {mode:<5} {_differ(count)}")
    lines.append(f"  modes among each other: {_differ(texts.modes_differ)}")
    lines.append(f"  control, two plain runs of the same engine: {_differ(texts.plain_twice_differ)}")
    return lines


def _differ(count: int) -> str:
    return f"{count} differ" if count else "all equal"
