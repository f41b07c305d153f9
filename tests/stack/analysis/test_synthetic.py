"""The builder's traces follow the contract: what other tests and the benchmark stand on."""

from __future__ import annotations

import pytest

from connector import names
from stack.analysis.complete import defects
from stack.analysis.synthetic import MS, Figures, plain_trace, pull_trace, push_trace, reuse_trace


@pytest.mark.parametrize("build", [push_trace, pull_trace, reuse_trace, plain_trace])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_trace_is_complete(build, ranks):
    trace = build(Figures(handshake=9 * MS), ranks=ranks)
    assert defects(trace) == []
    assert len({s.span_id for s in trace.spans}) == len(trace.spans)


def test_a_clock_that_is_off_moves_its_own_spans_only():
    right, off = push_trace(), push_trace(clocks={names.SERVICE_DECODE: 5})
    for before, after in zip(right.spans, off.spans, strict=True):
        assert after.start_ns - before.start_ns == (5 if before.resource.service_name == names.SERVICE_DECODE else 0)


def test_traces_of_different_numbers_share_no_id():
    one, two = push_trace(number=1), push_trace(number=2)
    assert one.trace_id != two.trace_id
    assert not {s.span_id for s in one.spans} & {s.span_id for s in two.spans}
