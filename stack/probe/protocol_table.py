"""Reads the protocol tables that UCX prints with ``UCX_PROTO_INFO=y``: which transport carries which message size.

A table has a title (who, where to, which operation, which memory), then rows of range, description, configuration.
UCX up to 1.19 puts the title into one line of two cells; later versions give it two lines and add a heading. Several
threads print at once: lines belong together when their ``[host:pid:thread]`` is the same. Pure.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from stack.probe.plan import READ, WRITE

_OPERATIONS = {"ucp_put": WRITE, "ucp_get": READ}
_LINE = re.compile(r"^(?P<source>[^|+]*?)\s*(?P<table>\|.*\||\+[-+]{3,}\+)\s*$")
_SOURCE = re.compile(r"\[([^\]\s]+(?:\s*:\s*\w+)*)\s*\]\s*$")
_RANGE = re.compile(r"^(\d+)([KMGT]?)(?:\.\.(?:(\d+)([KMGT]?)|(inf)))?$")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_EMULATION = "software emulation"


@dataclass(frozen=True, slots=True)
class ProtocolRow:
    """Messages of ``first`` to ``last`` bytes (``None``: any larger) go as ``description`` over ``lanes``."""

    first: int
    last: int | None
    description: str
    lanes: str

    @property
    def emulated(self) -> bool:
        return _EMULATION in self.description.lower()

    @property
    def name(self) -> str:
        return f"{self.description} over {self.lanes}" if self.lanes else self.description

    def covers(self, length: int) -> bool:
        return self.first <= length and (self.last is None or length <= self.last)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class ProtocolTable:
    title: str
    rows: list[ProtocolRow] = field(default_factory=list)

    @property
    def operation(self) -> str | None:
        return next((operation for call, operation in _OPERATIONS.items() if call in self.title), None)

    @property
    def configuration(self) -> int:
        """The number of the endpoint's configuration: it grows as lanes are added; -1 when the title has none."""
        found = re.search(r"\bcfg#(\d+)", self.title)
        return int(found[1]) if found else -1

    @property
    def to_itself(self) -> bool:
        """Whether this is the endpoint that an agent keeps to itself."""
        return re.search(r"\bself cfg#", self.title) is not None


def parse_tables(text: str) -> list[ProtocolTable]:
    """Returns all tables in a log, in order; lines that belong to none are passed over."""
    tables: list[ProtocolTable] = []
    open_tables: dict[str, ProtocolTable] = {}
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None or found["table"].startswith("+"):
            continue
        identity = _SOURCE.search(found["source"])
        source = identity[1] if identity else ""
        cells = [cell.strip() for cell in found["table"].strip().strip("|").split("|")]
        table = open_tables.get(source)
        if len(cells) >= 3:
            if table is not None:
                _add_row(table, cells)
        elif table is None or table.rows:
            open_tables[source] = ProtocolTable(" ".join(cells))
            tables.append(open_tables[source])
        else:
            table.title += " " + " ".join(cells)
    return tables


def _add_row(table: ProtocolTable, cells: list[str]) -> None:
    found = _RANGE.match(cells[0])
    if found is not None:
        first = int(found[1]) * _UNITS[found[2]]
        last = None if found[5] else int(found[3]) * _UNITS[found[4]] if found[3] else first
        table.rows.append(ProtocolRow(first, last, cells[1].removeprefix("(?)").strip(), cells[2]))
    elif not cells[0] and table.rows:  # a long configuration goes on in the next line
        row = table.rows[-1]
        words = [
            f"{before} {more}".strip() for before, more in zip((row.description, row.lanes), cells[1:3], strict=True)
        ]
        table.rows[-1] = ProtocolRow(row.first, row.last, *words)


def chosen_rows(tables: list[ProtocolTable], operation: str, memory: str) -> list[ProtocolRow]:
    """Returns the rows that UCX settled on for WRITE or READ to a peer, ``[]`` when no table says.

    ``memory`` is NIXL's kind of memory. UCX prints a table again when an endpoint's lanes change. Every worker of the
    process (NIXL has several) connects its own endpoint, and one that is used while it still connects has the first
    lane only, over which UCX emulates everything: such a table may be printed after those of the others. So the
    highest configuration holds, and of equals the last.
    """
    fitting = [table for table in tables if table.rows and table.operation == operation and not table.to_itself]
    word = "cuda" if memory == "VRAM" else "host memory"
    of_memory = [table for table in fitting if word in table.title.partition("ucp_")[2]]
    candidates = of_memory or fitting
    return (
        max(enumerate(candidates), key=lambda found: (found[1].configuration, found[0]))[1].rows if candidates else []
    )
