"""The probe's document, ``kvpath.probe/1``, made from what the sides measured. Pure.

``results`` has a row for each operation, layout and concurrency. Times are integer nanoseconds: the median of the
repetitions, with minimum and maximum under ``spread``. The first repetition, which pays for the connection and for
first touches, is apart under ``first``. ``total_ns`` goes from the first posting call until all transfers were seen to
have ended; rates are bytes over ``total_ns``, in 10^9 bytes a second.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median
from typing import Any

from stack.probe.plan import DECODE, OPERATIONS, PREFILL, READ, WRITE, Plan
from stack.probe.protocol_table import ProtocolRow

SCHEMA = "kvpath.probe/1"
DIFFERENT = 2.0  # directions whose rates differ by more make a comparison one of the transport
UNSTEADY = 2.0  # slowest repetition over fastest
# GB/s. Emulation copies every byte through host memory and a socket on one CPU: a few GB/s.
MOST_EMULATED = 30.0
POSTING = 0.9  # of the total time; CMA, for one, copies the data in the call that posts it
_TIMES = ("prepare_ns", "submit_ns", "total_ns")


def document(plan: Plan, measured: dict[str, Any]) -> dict[str, Any]:
    """Returns the document; ``measured`` is what :func:`stack.probe.side.lead` returned."""
    rows = {operation: [ProtocolRow(**row) for row in measured["rows"][operation]] for operation in OPERATIONS}
    transport = {operation: _transport(plan, rows[operation]) for operation in OPERATIONS}
    results = [_result(plan, case, rows[case["operation"]]) for case in measured["cases"]]
    belied = belied_tables(transport, results)
    transport |= {operation: transport[operation] | _UNTOLD for operation in belied}
    results = [r | {"transport": None, "emulated": None} if r["operation"] in belied else r for r in results]
    prefill, decode = measured[PREFILL], measured[DECODE]
    return {
        "schema": SCHEMA,
        "transport": transport,
        "results": results,
        "notes": [*map(_belied_note, belied.values()), *notes(plan, transport, results, prefill, decode)],
        "environment": {
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "plan": plan.to_json() | {"shape": asdict(plan.shape) | {"block_bytes": plan.shape.block_bytes}},
            "blocks": plan.blocks,
            "machine": platform.machine(),
            "same_host": _same_host(prefill, decode),
            PREFILL: prefill,
            DECODE: decode,
            "setup": measured["setup"],
        },
    }


_UNTOLD = {"name": "unknown", "emulated": None}


def belied_tables(transport: Mapping[str, Any], results: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, float]]:
    """The operations whose table says "emulated" although they moved data as no emulation can.

    Returns, by operation, what the table said and the rate in GB/s. Also for documents that were made before this was
    looked at. Such a table is that of an endpoint that was still being connected.
    """
    found: dict[str, tuple[str, float]] = {}
    for result in results:
        operation, rate = result["operation"], result["gigabytes_per_second"]
        told = transport.get(operation) or {}
        emulated = result.get("emulated", told.get("emulated"))
        if emulated and rate > max(MOST_EMULATED, found.get(operation, ("", 0.0))[1]):
            found[operation] = str(result.get("transport") or told.get("name")), rate
    return found


def _belied_note(belied: tuple[str, float]) -> str:
    name, rate = belied
    return (
        f"UCX's table says {name}, but {rate:.3g} GB/s were moved, which no emulation does: the table is not believed."
    )


def _transport(plan: Plan, rows: list[ProtocolRow]) -> dict[str, Any]:
    """What carries one block, which is what a fragmented transfer sends."""
    row = _row(rows, plan.shape.block_bytes)
    name = row.name if row else "unknown" if plan.backend == "UCX" else plan.backend
    return {"name": name, "emulated": row.emulated if row else None, "protocols": [row.to_json() for row in rows]}


def _row(rows: list[ProtocolRow], length: int) -> ProtocolRow | None:
    return next((row for row in rows if row.covers(length)), None)


def _result(plan: Plan, case: dict[str, Any], rows: list[ProtocolRow]) -> dict[str, Any]:
    first, *others = case["timings"]
    size = plan.shape.transfer_bytes(plan.tokens) * case["transfers"]
    submitted = first["submitted"]
    row = _row(rows, size // submitted)
    middle = {name: round(median(timing[name] for timing in others)) for name in _TIMES}
    return {
        "operation": case["operation"],
        "layout": case["layout"],
        "concurrency": case["transfers"],
        "bytes": size,
        "descriptors": case["descriptors"],
        "contiguous_runs": case["contiguous_runs"],
        "submitted_descriptors": submitted,
        **middle,
        "gigabytes_per_second": size / middle["total_ns"],
        "best_gigabytes_per_second": size / min(timing["total_ns"] for timing in others),
        "repetitions": len(others),
        "spread": {name: [pick(timing[name] for timing in others) for pick in (min, max)] for name in _TIMES},
        "first": {name: first[name] for name in _TIMES},
        "transport": row.name if row else None,
        "emulated": row.emulated if row else None,
    }


def notes(
    plan: Plan,
    transport: dict[str, Any],
    results: list[dict[str, Any]],
    prefill: dict[str, Any],
    decode: dict[str, Any],
) -> list[str]:
    """Returns what a reader of the figures must know, the most important first."""
    found = [
        f"{operation} is emulated in software ({transport[operation]['name']}): its figures are the emulation's, "
        "not the link's."
        for operation in OPERATIONS
        if transport[operation]["emulated"]
    ]
    found += _differences(results)
    unknown = [operation for operation in OPERATIONS if transport[operation]["name"] == "unknown"]
    if unknown:
        found.append(f"UCX did not tell which transport it chose for {' and '.join(unknown)}.")
    shaky = [r for r in results if r["spread"]["total_ns"][1] > UNSTEADY * r["spread"]["total_ns"][0]]
    if shaky:
        worst = max(shaky, key=lambda r: r["spread"]["total_ns"][1] / r["spread"]["total_ns"][0])
        low, high = worst["spread"]["total_ns"]
        found.append(
            f"Repetitions vary by up to {high / low:.1f}x ({_name(worst)}) in {len(shaky)} of {len(results)} rows: "
            "the machine or the link was busy."
        )
    if all(r["submit_ns"] > POSTING * r["total_ns"] for r in results):
        found.append(
            "Nearly all time passes inside the posting calls: here `submit` is the transfer, `flight` next to nothing."
        )
    if prefill["nixl"] != decode["nixl"]:
        found.append(f"The sides have different NIXL versions: {prefill['nixl']} and {decode['nixl']}.")
    if plan.backend == "UCX" and prefill["ucx"] != decode["ucx"]:
        found.append("The sides have different UCX_* settings; see the environment.")
    return found


def _differences(results: list[dict[str, Any]]) -> list[str]:
    """A difference counts when the medians and the best repetitions, the least disturbed ones, agree on it."""
    by_case = {(r["operation"], r["layout"], r["concurrency"]): r for r in results}
    found = []
    for (operation, layout, count), write in by_case.items():
        read = by_case.get((READ, layout, count))
        if operation != WRITE or read is None:
            continue
        fast, slow = sorted((write, read), key=lambda r: r["total_ns"])
        ratio = slow["total_ns"] / fast["total_ns"]
        if ratio <= DIFFERENT:
            continue
        text = f"{fast['operation']} is {ratio:.1f}x as fast as {slow['operation']} ({layout}, {count} at once)"
        if slow["spread"]["total_ns"][0] > DIFFERENT * fast["spread"]["total_ns"][0]:
            found.append(
                f"{text}: a comparison of push and pull over this link is about the transport, not the protocol."
            )
        else:
            found.append(f"{text} by the medians, but not by the best repetitions: probe again with more of them.")
    return found


def _name(result: dict[str, Any]) -> str:
    return f"{result['operation']} {result['layout']}, {result['concurrency']} at once"


def _same_host(prefill: dict[str, Any], decode: dict[str, Any]) -> bool:
    return prefill["boot_id"] is not None and prefill["boot_id"] == decode["boot_id"]
