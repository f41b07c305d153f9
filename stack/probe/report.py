"""The probe's document for a terminal of 80 columns or more. Pure."""

from __future__ import annotations

import textwrap
from typing import Any

from stack.analysis.terminal import Terminal, milliseconds
from stack.probe.plan import DECODE, OPERATIONS, PREFILL

_HEADINGS = ("", "descr.", "runs", "prepare", "submit", "total", "min..max", "GB/s")
_WIDTHS = (17, 8, 8, 8, 8, 8, 16, 7)
_INDENT = "  "


def report_text(document: dict[str, Any], terminal: Terminal) -> str:
    """Returns the report; times in milliseconds, medians where nothing else is said."""
    lines = [*_heading(document, terminal), "", *_transports(document, terminal), "", *_table(document, terminal)]
    for note in document["notes"]:
        lines += ["", *_wrapped(terminal.safe(note), terminal, terminal.glyph("▸ ", "> "))]
    return "\n".join(lines)


def _heading(document: dict[str, Any], terminal: Terminal) -> list[str]:
    environment = document["environment"]
    plan = environment["plan"]
    shape = plan["shape"]
    block = shape["block_bytes"]
    size = shape["layers"] * environment["blocks"] * block
    prefill, decode = (environment[side]["host"] for side in (PREFILL, DECODE))
    where = f"two processes on {prefill}" if environment["same_host"] else f"{prefill} (prefill), {decode} (decode)"
    devices = dict.fromkeys(environment[side]["device"] for side in (PREFILL, DECODE))
    first = f"NIXL {environment[PREFILL]['nixl']} {plan['backend']}, {' and '.join(devices)}, {where}"
    second = (
        f"{plan['tokens']} tokens = {shape['layers']} layers x {environment['blocks']} blocks of {block / 1024:g} KiB"
        f" = {size / 1e6:.1f} MB; {plan['repetitions']} repetitions"
    )
    return [terminal.styled(line, style) for line, style in ((terminal.safe(first), "bold"), (second, "dim"))]


def _transports(document: dict[str, Any], terminal: Terminal) -> list[str]:
    lines = []
    for operation in OPERATIONS:
        transport = document["transport"][operation]
        name = terminal.safe(transport["name"])
        lines.append(f"{operation:<6}{terminal.styled(name, 'red') if transport['emulated'] else name}")
    return lines


def _table(document: dict[str, Any], terminal: Terminal) -> list[str]:
    lines = [terminal.styled(_row(_HEADINGS), "bold")]
    concurrency = 1
    for result in document["results"]:
        if result["concurrency"] != concurrency:
            concurrency = result["concurrency"]
            lines += ["", f"{concurrency} transfers at once"]
        lines.append(_row(_cells(result)))
    first = max(document["results"], key=lambda r: r["first"]["total_ns"])
    lines += [
        "",
        "Times in ms. A run is descriptors that follow one another on both sides.",
        f"First repetitions are apart: up to {milliseconds(first['first']['total_ns'])} ms"
        f" ({first['operation']} {first['layout']}).",
    ]
    return lines


def _cells(result: dict[str, Any]) -> tuple[str, ...]:
    low, high = result["spread"]["total_ns"]
    rate = result["gigabytes_per_second"]
    return (
        f"{result['operation']} {result['layout']}",
        f"{result['descriptors']:,}",
        f"{result['contiguous_runs']:,}",
        *(milliseconds(result[name]) for name in ("prepare_ns", "submit_ns", "total_ns")),
        f"{milliseconds(low)}..{milliseconds(high)}",
        f"{rate:.0f}" if rate >= 100 else f"{rate:.2f}",
    )


def _row(cells: tuple[str, ...]) -> str:
    name, *others = (f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))
    return f"{name.strip():<{_WIDTHS[0]}}{''.join(others)}"


def _wrapped(text: str, terminal: Terminal, mark: str) -> list[str]:
    return textwrap.wrap(text, terminal.width, initial_indent=mark, subsequent_indent=_INDENT)
