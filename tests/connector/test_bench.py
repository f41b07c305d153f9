from __future__ import annotations

import pytest

from connector import bench


def test_the_figures_are_there_and_the_paths_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """No timing is asserted: other work may share the machine. What is timed must be the real thing, though."""
    monkeypatch.setattr(bench, "ROUNDS", 5)
    figures = bench.run()
    wanted = {
        f"{what}_us_{mode}_{side}"
        for what in ("request", "drain")
        for mode in ("push", "pull", "reuse")
        for side in ("prefill", "decode")
    }
    assert wanted | {"fact_ns_p50", "fact_ns_p99", "transfer_ns"} <= set(figures)
    assert all(type(value) in (int, float) for value in figures.values())
    assert figures["fact_ns_p50"] > 0


@pytest.mark.parametrize("mode", ["push", "pull", "reuse"])
def test_the_lives_that_are_timed_cause_no_errors(mode: str) -> None:
    timed = bench.Bench()
    timed.prefill(mode, True, 1)
    timed.decode(mode, True, 2)
    timed.ledger.drain()
    assert timed.ledger.losses.errors == timed.ledger.losses.dropped == 0
    assert timed.telemetry.counts().ended >= 5
    timed.telemetry.shutdown()
