from __future__ import annotations

from pathlib import Path

import pytest

from stack.probe.protocol_table import ProtocolRow, chosen_rows, parse_tables

TABLES = Path(__file__).parent / "tables"


def row(name: str, operation: str, length: int, memory: str = "DRAM") -> ProtocolRow:
    rows = chosen_rows(parse_tables((TABLES / name).read_text()), operation, memory)
    return next(row for row in rows if row.covers(length))


@pytest.mark.parametrize(
    ("table", "operation", "memory", "name", "emulated"),
    [
        ("cma.txt", "WRITE", "DRAM", "zero-copy over cma/memory", False),
        ("cma.txt", "READ", "DRAM", "zero-copy over cma/memory", False),
        ("tcp_read_emulated.txt", "WRITE", "DRAM", "zero-copy over 52% on tcp/lo and 48% on tcp/eth0", False),
        ("tcp_read_emulated.txt", "READ", "DRAM", "software emulation over tcp/lo", True),
        ("cuda_ipc_read_emulated.txt", "WRITE", "VRAM", "zero-copy over cuda_ipc/cuda", False),
        ("cuda_ipc_read_emulated.txt", "READ", "VRAM", "software emulation over tcp/lo", True),
        ("cuda_ipc_read_emulated.txt", "READ", "DRAM", "zero-copy over cma/memory", False),
        ("rdma_one_line_titles.txt", "READ", "DRAM", "zero-copy over rc_mlx5/mlx5_0:1/path0", False),
    ],
)
def test_what_carries_a_block_of_64_kib(table: str, operation: str, memory: str, name: str, emulated: bool) -> None:
    found = row(table, operation, 65536, memory)
    assert (found.name, found.emulated) == (name, emulated)


@pytest.mark.parametrize(
    ("length", "name"),
    [
        (1, "short over rc_mlx5/mlx5_0:1/path0"),
        (2048, "short over rc_mlx5/mlx5_0:1/path0"),
        (2049, "copy-in over rc_mlx5/mlx5_0:1/path0"),
        (9384, "zero-copy over 50% on rc_mlx5/mlx5_0:1 and 50% on rc_mlx5/mlx5_2:1"),
        (2**40, "zero-copy over 50% on rc_mlx5/mlx5_0:1 and 50% on rc_mlx5/mlx5_2:1"),
    ],
)
def test_the_size_decides(length: int, name: str) -> None:
    assert row("rdma_one_line_titles.txt", "WRITE", length).name == name


def test_small_messages_may_be_emulated_where_large_ones_are_not() -> None:
    assert [row("rdma_one_line_titles.txt", "READ", size).emulated for size in (0, 64, 65)] == [False, True, False]


def test_every_table_of_a_recorded_log_is_found() -> None:
    tables = parse_tables((TABLES / "cma.txt").read_text())
    assert [table.operation for table in tables] == ["WRITE", None, "WRITE", "READ", None]
    assert [table.to_itself for table in tables] == [True, True, False, False, True]
    assert all(table.rows for table in tables)


def test_the_last_table_holds() -> None:
    text = (TABLES / "cma.txt").read_text() + (TABLES / "tcp_read_emulated.txt").read_text()
    assert chosen_rows(parse_tables(text), "READ", "DRAM")[0].emulated


def test_an_endpoint_that_still_connects_does_not_speak_for_the_link() -> None:
    """Two workers on a GPU: the second is used before its cuda_ipc lane is there, and prints its table last."""
    rows = chosen_rows(parse_tables((TABLES / "cuda_ipc_two_workers.txt").read_text()), "WRITE", "VRAM")
    assert [row.name for row in rows] == ["zero-copy over cuda_ipc/cuda"]
    reads = chosen_rows(parse_tables((TABLES / "cuda_ipc_two_workers.txt").read_text()), "READ", "VRAM")
    assert [row.name for row in reads] == ["software emulation over tcp/lo"]


def test_tables_of_two_threads_may_be_interleaved() -> None:
    cma = (TABLES / "cma.txt").read_text().splitlines()
    tcp = (TABLES / "tcp_read_emulated.txt").read_text().splitlines()
    mixed = [line for pair in zip(cma, tcp, strict=True) for line in pair]
    tables = parse_tables("\n".join(mixed))
    assert len(tables) == len(parse_tables("\n".join(cma))) + len(parse_tables("\n".join(tcp)))
    reads = [table.rows for table in tables if table.operation == "READ"]
    assert [rows[0].name for rows in reads] == ["zero-copy over cma/memory", "software emulation over tcp/lo"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "| a | b",
        "UCX  WARN  something | else |\n",
        "[1.0] [h:1:0]   | x cfg#0 |\n[1.0] [h:1:0]   | y by ucp_get* from host memory |\n",
        "| 0..inf | zero-copy | cma/memory |\n",
        "+---+\n" * 5,
    ],
)
def test_what_is_no_table_chooses_nothing(text: str) -> None:
    assert chosen_rows(parse_tables(text), "READ", "DRAM") == []


def test_a_table_to_itself_says_nothing_about_the_peer() -> None:
    text = (TABLES / "cma.txt").read_text().replace("intra-node", "self")
    assert chosen_rows(parse_tables(text), "WRITE", "DRAM") == []
