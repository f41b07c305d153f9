"""The benchmark measures the whole way and keeps its target."""

from __future__ import annotations

from stack.analysis import bench


def test_the_benchmark_counts_whole_traces():
    found = bench.run(count=20, rounds=1)
    assert found["traces"] == 20
    assert found["spans_per_trace"] == 16.0
    assert found["json_traces_per_s"] > 0
    assert found["memory_traces_per_s"] > 0
    assert found["target_json_traces_per_s"] == 1000
