from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stack.probe.plan import Plan
from stack.probe.result import SCHEMA, belied_tables, document

ZERO_COPY = {"first": 0, "last": None, "description": "zero-copy", "lanes": "cuda_ipc/cuda"}
EMULATED = {"first": 0, "last": None, "description": "software emulation", "lanes": "tcp/lo"}
RESULTS = Path(__file__).parents[3] / "stack" / "experiment" / "results"
ABOUT = {"host": "h", "boot_id": "b", "device": "cpu", "nixl": "1.5.1", "ucx": {}}


def timing(total: int, prepare: int = 100, submit: int = 0, submitted: int = 24) -> dict[str, int]:
    return {"prepare_ns": prepare, "submit_ns": submit, "total_ns": total, "submitted": submitted}


def measured(write: list[int], read: list[int], **changes: Any) -> dict[str, Any]:
    cases = [
        {
            "operation": operation,
            "layout": "fragmented",
            "transfers": 1,
            "descriptors": 24,
            "contiguous_runs": 24,
            "timings": [timing(total) for total in totals],
        }
        for operation, totals in (("WRITE", write), ("READ", read))
    ]
    rows = {"WRITE": [ZERO_COPY], "READ": [ZERO_COPY]}
    return {"cases": cases, "rows": rows, "setup": {}, "prefill": ABOUT, "decode": ABOUT} | changes


def test_the_median_of_the_repetitions_stands_without_the_first(plan: Plan) -> None:
    result = document(plan, measured([9000, 300, 100, 200], [100, 100, 100]))["results"][0]
    assert result["total_ns"] == 200
    assert result["first"]["total_ns"] == 9000
    assert result["spread"]["total_ns"] == [100, 300]
    assert result["repetitions"] == 3


def test_the_rate_is_bytes_over_the_whole_time(plan: Plan) -> None:
    result = document(plan, measured([1, 2400, 2400, 1200], [1, 2400]))["results"][0]
    assert result["bytes"] == 3 * 8 * 1024
    assert result["gigabytes_per_second"] == pytest.approx(24 * 1024 / 2400)
    assert result["best_gigabytes_per_second"] == pytest.approx(24 * 1024 / 1200)


def test_times_are_whole_nanoseconds(plan: Plan) -> None:
    result = document(plan, measured([1, 2, 3], [1, 2, 3]))["results"][0]
    assert all(isinstance(result[name], int) for name in ("prepare_ns", "submit_ns", "total_ns"))


def test_equal_directions_need_no_note(plan: Plan) -> None:
    found = document(plan, measured([1, 100, 110], [1, 105, 115]))
    assert (found["schema"], found["notes"]) == (SCHEMA, [])
    assert found["environment"]["same_host"] is True


def test_an_emulated_direction_is_said_first(plan: Plan) -> None:
    found = document(plan, measured([1, 10_000], [1, 50_000], rows={"WRITE": [ZERO_COPY], "READ": [EMULATED]}))
    assert found["transport"]["READ"]["emulated"] is True
    assert found["transport"]["WRITE"] == {
        "name": "zero-copy over cuda_ipc/cuda",
        "emulated": False,
        "protocols": [ZERO_COPY],
    }
    assert found["notes"][0].startswith("READ is emulated in software (software emulation over tcp/lo)")
    assert "WRITE is 5.0x as fast as READ" in found["notes"][1]
    assert "about the transport" in found["notes"][1]


@pytest.mark.parametrize(("read", "said"), [([1, 199], False), ([1, 201], True)])
def test_a_factor_of_two_is_the_limit(plan: Plan, read: list[int], said: bool) -> None:
    notes = document(plan, measured([1, 100], read))["notes"]
    assert any("about the transport" in note for note in notes) is said


def test_a_difference_that_the_best_repetitions_do_not_show_is_doubtful(plan: Plan) -> None:
    notes = document(plan, measured([1, 100, 100, 100], [1, 110, 900, 900]))["notes"]
    assert not any("about the transport" in note for note in notes)
    assert any("not by the best repetitions" in note for note in notes)
    assert any("vary by up to 8.2x (READ fragmented, 1 at once) in 1 of 2 rows" in note for note in notes)


def test_a_transport_that_moves_the_data_while_posting_is_told(plan: Plan) -> None:
    data = measured([1, 100], [1, 100])
    for case in data["cases"]:
        case["timings"] = [timing(100, submit=95)] * 2
    assert any("inside the posting calls" in note for note in document(plan, data)["notes"])
    data["cases"][1]["timings"] = [timing(100, submit=80)] * 2
    assert document(plan, data)["notes"] == []


def test_a_transport_that_nobody_told_is_unknown_not_assumed(plan: Plan) -> None:
    found = document(plan, measured([1, 1], [1, 1], rows={"WRITE": [], "READ": []}))
    assert found["transport"]["READ"] == {"name": "unknown", "emulated": None, "protocols": []}
    assert found["results"][0]["emulated"] is None
    assert any("did not tell" in note for note in found["notes"])


def test_another_backend_has_no_ucx_table(make_plan: Any) -> None:
    found = document(make_plan(backend="LIBFABRIC"), measured([1, 1], [1, 1], rows={"WRITE": [], "READ": []}))
    assert found["transport"]["READ"]["name"] == "LIBFABRIC"
    assert found["notes"] == []


def test_a_merged_descriptor_may_go_another_way_than_a_block(plan: Plan) -> None:
    small = EMULATED | {"last": 1024}
    large = ZERO_COPY | {"first": 1025}
    data = measured([1, 9_000], [1, 9_000], rows={"WRITE": [small, large], "READ": [small, large]})
    data["cases"][0]["timings"] = [timing(9_000, submitted=3)] * 2
    found = document(plan, data)
    assert [result["emulated"] for result in found["results"]] == [False, True]
    assert found["transport"]["WRITE"]["emulated"] is True


def test_sides_that_differ_are_mentioned(plan: Plan) -> None:
    other = ABOUT | {"boot_id": "c", "nixl": "1.4.0", "ucx": {"UCX_TLS": "tcp"}}
    found = document(plan, measured([1, 1], [1, 1], decode=other))
    assert found["environment"]["same_host"] is False
    assert len(found["notes"]) == 2


def test_a_table_that_the_rate_belies_is_not_believed() -> None:
    """As recorded on an H200: the table said emulation over TCP for both directions, WRITE moved 419 GB/s."""
    recorded = json.loads((RESULTS / "h200-default-16.json").read_text())["probe"]
    assert {operation: told["emulated"] for operation, told in recorded["transport"].items()} == {
        "WRITE": True,
        "READ": True,
    }
    belied = belied_tables(recorded["transport"], recorded["results"])
    assert {operation: (name, round(rate)) for operation, (name, rate) in belied.items()} == {
        "WRITE": ("software emulation over tcp/lo", 419)
    }


def test_a_belied_table_leaves_the_transport_unknown_and_says_so(plan: Plan) -> None:
    size = plan.shape.transfer_bytes(plan.tokens)
    quick, slow = round(size / 419), size * 10
    rows = {"WRITE": [EMULATED], "READ": [EMULATED]}
    found = document(plan, measured([quick] * 3, [slow] * 3, rows=rows))
    assert found["transport"]["WRITE"] == {"name": "unknown", "emulated": None, "protocols": [EMULATED]}
    assert found["transport"]["READ"]["emulated"] is True
    assert [result["emulated"] for result in found["results"]] == [None, True]
    assert found["notes"][0].startswith("UCX's table says software emulation over tcp/lo, but 4")
    assert not any(note.startswith("WRITE is emulated") for note in found["notes"])
