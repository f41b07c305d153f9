from __future__ import annotations

from typing import Any

import pytest

from stack.analysis.terminal import Terminal, columns
from stack.probe.plan import Plan
from stack.probe.report import report_text
from stack.probe.result import document
from stack.probe.shape import BlockShape

ABOUT = {"host": "gpu-host", "boot_id": "b", "device": "cuda:0", "nixl": "1.5.1", "ucx": {}}
# One H200, 576 MiB in blocks of 64 KiB: (prepare, submit, total) in nanoseconds
H200 = {
    ("WRITE", "contiguous"): (300_000, 70_000, 660_000),
    ("READ", "contiguous"): (300_000, 30_000, 1_028_000_000),
    ("WRITE", "fragmented"): (1_100_000, 108_000_000, 109_000_000),
    ("READ", "fragmented"): (800_000, 177_000_000, 1_184_000_000),
}


def h200(make_plan: Any, host: str = "gpu-host") -> dict[str, Any]:
    plan: Plan = make_plan(shape=BlockShape(layers=36, kv_heads=8, head_size=128), tokens=4096)
    cases = [
        {
            "operation": operation,
            "layout": layout,
            "transfers": 1,
            "descriptors": 9216,
            "contiguous_runs": 36 if layout == "contiguous" else 9216,
            "timings": [dict(zip(("prepare_ns", "submit_ns", "total_ns"), times, strict=True)) | {"submitted": 1}] * 3,
        }
        for (operation, layout), times in H200.items()
    ]
    rows = {
        "WRITE": [{"first": 0, "last": None, "description": "zero-copy", "lanes": "cuda_ipc/cuda"}],
        "READ": [{"first": 0, "last": None, "description": "software emulation", "lanes": "tcp/lo"}],
    }
    about = ABOUT | {"host": host}
    return document(plan, {"cases": cases, "rows": rows, "setup": {}, "prefill": about, "decode": about})


def test_it_fits_80_columns(make_plan: Any) -> None:
    lines = report_text(h200(make_plan), Terminal()).splitlines()
    assert max(columns(line) for line in lines) <= 80


def test_the_columns_stand_under_their_headings(make_plan: Any) -> None:
    lines = report_text(h200(make_plan), Terminal()).splitlines()
    heading = next(line for line in lines if "descr." in line)
    row = next(line for line in lines if line.startswith("READ fragmented"))
    assert row.split() == [
        *("READ", "fragmented", "9,216", "9,216"),
        *("0.800", "177.0", "1184.0", "1184.0..1184.0", "0.51"),
    ]
    for name, value in (("submit", "177.0"), ("total", " 1184.0"), ("GB/s", "0.51")):
        assert heading.index(name) + len(name) == row.index(value) + len(value)


def test_the_trap_of_the_transport_is_spelled_out(make_plan: Any) -> None:
    text = " ".join(report_text(h200(make_plan), Terminal()).split())
    assert "READ software emulation over tcp/lo" in text
    assert "READ is emulated in software" in text
    assert "WRITE is 1557.6x as fast as READ (contiguous, 1 at once)" in text


def test_text_from_the_peer_moves_no_cursor(make_plan: Any) -> None:
    assert "\x1b" not in report_text(h200(make_plan, host="evil\x1b[2J"), Terminal())


@pytest.mark.parametrize("unicode", [True, False])
def test_plain_ascii_where_the_terminal_has_nothing_else(make_plan: Any, unicode: bool) -> None:
    assert report_text(h200(make_plan), Terminal(unicode=unicode)).isascii() is not unicode
