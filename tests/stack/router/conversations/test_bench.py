from __future__ import annotations

from stack.router.conversations import bench


def test_every_figure_is_there_and_the_table_tells_its_size_truly():
    figures = bench.measure(lookups=3, conversations=2000)
    assert all(figure > 0 for figure in figures.values())
    assert 0 < figures["table_allocated_bytes"] - figures["table_bytes"] < 300_000  # what the interpreter adds once
