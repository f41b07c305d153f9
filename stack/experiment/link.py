"""Is a comparison of push and pull about the protocol, or about the link's two directions? Pure.

Push WRITEs and pull READs, and a transport may carry the two very differently (zero-copy one way, software emulation
over TCP the other). What decides is the link probe, which moves the real block shape both ways with nothing beside it.
Without a probe the transfers' own rates decide; they also carry the load of the moment, and so count for less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from connector import names
from stack.experiment.traced import Moved
from stack.probe.result import belied_tables

MAX_RATIO = 2.0  # between the directions' rates; beyond, the comparison is about the transport
AGREEMENT = 2.0  # between a transfer's time and what the probe predicts
PROBE, TRANSFERS, NOTHING = "probe", "transfers", "nothing"
OPERATIONS = (names.OPERATION_WRITE, names.OPERATION_READ)
_MIN_TRANSFERS = 5


@dataclass(frozen=True, slots=True)
class Rates:
    """Gigabytes (1e9) per second of both directions under one condition (a layout of the probe, or the transfers).

    Medians, and where they are known the best of all repetitions, which other load disturbs least.
    """

    condition: str
    write: float
    read: float
    best: tuple[float, ...] | None = None

    @property
    def ratio(self) -> float:
        """The faster direction over the slower."""
        return _ratio(self.write, self.read)

    @property
    def unequal(self) -> bool:
        """More than :data:`MAX_RATIO` apart, by the medians and by the best: a busy moment alone is not the link."""
        if self.ratio <= MAX_RATIO or self.best is None:
            return self.ratio > MAX_RATIO
        return _ratio(*self.best) > MAX_RATIO and (self.best[0] > self.best[1]) == (self.write > self.read)


def _ratio(one: float, other: float) -> float:
    low, high = sorted((one, other))
    return high / low if low > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class Link:
    """What is known of the link. ``reasons`` say why the comparison is about the transport; empty: it is not."""

    source: str
    rates: tuple[Rates, ...] = ()
    transports: Mapping[str, str] = field(default_factory=dict)  # operation → what the probe says carried it
    emulated: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def judge_link(probe: Mapping[str, Any] | None, moved: Sequence[Moved]) -> Link:
    """``probe`` is the probe's JSON, ``moved`` every transfer of the cell in either direction."""
    if probe is not None:
        rates = _probe_rates(probe)
        transports, emulated = _transports(probe)
        notes = tuple(map(str, probe.get("notes", ())))
        if rates or emulated:
            reasons = tuple(_reasons(rates, emulated, transports))
            return Link(PROBE, rates, transports, emulated, reasons, notes)
    rates = _transfer_rates(moved)
    if not rates:
        return Link(NOTHING, notes=("the link was not probed, and too few transfers of both directions were traced",))
    return Link(TRANSFERS, rates, reasons=tuple(_reasons(rates, (), {})), notes=("the link was not probed",))


def _probe_rates(probe: Mapping[str, Any]) -> tuple[Rates, ...]:
    """The rates of the largest size that was probed in both directions, one transfer at a time, by layout."""
    found: list[Rates] = []
    results = _alone(probe)
    for layout in dict.fromkeys(r["layout"] for r in results):
        by_size: dict[int, dict[str, Mapping[str, Any]]] = {}
        for r in results:
            if r["layout"] == layout:
                by_size.setdefault(r["bytes"], {})[r["operation"]] = r
        both = {size: rows for size, rows in by_size.items() if set(OPERATIONS) <= set(rows)}
        if both:
            rows = [both[max(both)][operation] for operation in OPERATIONS]
            write, read = (row["gigabytes_per_second"] for row in rows)
            known = all("best_gigabytes_per_second" in row for row in rows)
            best = tuple(float(row["best_gigabytes_per_second"]) for row in rows) if known else None
            found.append(Rates(f"{layout} blocks", write, read, best))
    return tuple(found)


def _alone(probe: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The probe's rows without those of several transfers at once."""
    return [r for r in probe.get("results", ()) if r.get("concurrency", 1) == 1]


def _transports(probe: Mapping[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    told = {op: one for op, one in (probe.get("transport") or {}).items() if isinstance(one, Mapping)}
    names_ = {operation: str(one.get("name") or "unknown") for operation, one in told.items()}
    belied = belied_tables(told, probe.get("results", ()))
    names_ |= dict.fromkeys(belied, "unknown")
    return names_, tuple(
        operation for operation, one in told.items() if one.get("emulated") and operation not in belied
    )


def _transfer_rates(moved: Sequence[Moved]) -> tuple[Rates, ...]:
    by_operation = {op: [m.gigabytes_per_second for m in moved if m.operation == op] for op in OPERATIONS}
    if any(len(rates) < _MIN_TRANSFERS for rates in by_operation.values()):
        return ()
    write, read = (median(by_operation[operation]) for operation in OPERATIONS)
    best = tuple(max(by_operation[operation]) for operation in OPERATIONS)
    return (Rates("the experiment's own transfers", write, read, best),)


def _reasons(rates: Sequence[Rates], emulated: Sequence[str], transports: Mapping[str, str]) -> list[str]:
    found = [
        f"the link moves {_rate(r.write)} by WRITE (push) and {_rate(r.read)} by READ (pull) with {r.condition}: "
        f"a factor of {r.ratio:.3g}"
        for r in rates
        if r.unequal
    ]
    found += [
        f"{operation} is emulated in software ({transports.get(operation, 'unknown transport')})"
        for operation in emulated
    ]
    return found


def _rate(gigabytes: float) -> str:
    return f"{gigabytes:.3g} GB/s"


def prediction_notes(probe: Mapping[str, Any] | None, moved: Sequence[Moved]) -> list[str]:
    """Says for each direction whether the transfers took what the probe predicts for their bytes and layout."""
    if probe is None:
        return []
    notes = []
    for operation in OPERATIONS:
        own = [m for m in moved if m.operation == operation and m.bytes > 0 and m.time_ns > 0]
        measured = [r for r in _alone(probe) if r["operation"] == operation]
        if own and measured:
            notes.append(_prediction_note(operation, own, measured))
    return notes


def _prediction_note(operation: str, own: Sequence[Moved], measured: Sequence[Mapping[str, Any]]) -> str:
    size, took = median(m.bytes for m in own), median(m.time_ns for m in own)
    spread = median(m.runs / m.descriptors if m.descriptors else 0.0 for m in own)
    like = min(measured, key=lambda r: (abs(_spread(r) - spread), abs(r["bytes"] - size)))
    expected = size / max(like["gigabytes_per_second"], 1e-12)
    text = (
        f"{operation} of {size / 1e6:.3g} MB took {took / 1e6:.3g} ms (median); "
        f"the probe predicts {expected / 1e6:.3g} ms ({like['layout']})"
    )
    if max(took, expected) <= AGREEMENT * min(took, expected):
        return f"{text}: they agree within a factor of {AGREEMENT:g}"
    gap = median(m.poll_gap_ns for m in own)
    if took - gap <= AGREEMENT * expected and took > expected:
        return f"{text}: the end was seen up to {gap / 1e6:.3g} ms late, because engines poll between their steps"
    if took > expected:
        return f"{text}: the probe had the machine and the link to itself, the engines share both with their own work"
    return f"{text}: the transfers were faster; the probe's time per post outweighs its bytes, or it met other load"


def _spread(result: Mapping[str, Any]) -> float:
    return result["contiguous_runs"] / result["descriptors"] if result.get("descriptors") else 0.0
