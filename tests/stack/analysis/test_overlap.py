"""Overlapped time: clipped to before prefill ended, each instant counted once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stack.analysis.overlap import OVERLAP_KINDS, overlapped, overlapped_total, union_length
from stack.analysis.request import request_spans
from stack.analysis.synthetic import MS, Figures, pull_trace, push_trace


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8))
def test_a_union_is_the_number_of_covered_instants(intervals):
    assert union_length(intervals) == len({t for start, end in intervals for t in range(start, end)})


def test_work_of_several_ranks_at_once_counts_once():
    f = Figures(handshake=30 * MS, handshake_lead=20 * MS)
    assert overlapped(request_spans(push_trace(f, ranks=3)))["handshake"] == 20 * MS


def test_the_total_counts_instants_of_several_kinds_once():
    request = request_spans(push_trace(Figures(decode_hop=5 * MS, register=2 * MS)))
    assert overlapped(request)["decode_leg_hop"] == 5 * MS
    assert overlapped(request)["registration"] == 2 * MS
    assert overlapped_total(request) == 7 * MS


def test_what_runs_after_prefill_is_not_overlapped():
    late = overlapped(request_spans(push_trace(Figures(decode_hop=5000 * MS))))
    assert late["registration"] == 0
    assert late["decode_leg_hop"] == 805 * MS - 0  # from the decode leg to the end of prefill, and no longer
    pull = request_spans(pull_trace(Figures(handshake=9 * MS)))
    assert overlapped(pull) == dict.fromkeys(OVERLAP_KINDS, 0)
    assert overlapped_total(pull) == 0
