"""Each trace is analysed once, within a budget, and again when spans arrive or clock bounds tighten."""

from __future__ import annotations

from stack.analysis.compare import analyse_all
from stack.analysis.synthetic import DECODE, MS, Figures, push_trace
from stack.analysis.trace import Trace
from stack.view.analysed import AnalysedTraces


class Feed:
    name = empty = "a feed"

    def __init__(self, *traces: Trace) -> None:
        self.traces = {trace.trace_id: (trace, 0) for trace in traces}
        self.loads: list[str] = []

    def newest(self):
        return [(trace_id, version) for trace_id, (_, version) in self.traces.items()]

    def load(self, trace_id):
        self.loads.append(trace_id)
        return self.traces[trace_id][0] if trace_id in self.traces else None


class Ticking:
    """A clock on which every look takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def several_hosts(number: int, hop: int) -> Trace:
    """A request whose D has a clock of its own, 50 ms ahead; ``hop`` bounds what its messages tell about it."""
    figures = Figures(decode_hop=hop, deliver=hop)
    return push_trace(figures, number=number, boot_ids={DECODE: "boot-b"}, clocks={DECODE: 50 * MS})


def test_a_trace_is_analysed_once():
    feed = Feed(push_trace(number=1), push_trace(number=2))
    traces = AnalysedTraces(feed)
    assert len(traces.complete()) == 2
    assert len(traces.complete()) == 2
    assert len(feed.loads) == 2


def test_the_budget_bounds_one_call_and_the_rest_is_told():
    feed = Feed(*(push_trace(number=n) for n in range(1, 6)))
    traces = AnalysedTraces(feed, monotonic=Ticking())
    entries, left = traces.refresh(budget_s=1.5)
    assert 0 < len(entries) < 5
    assert len(entries) + left == 5
    assert [e.row["id"] for e in entries] == list(feed.traces)[: len(entries)]
    for _ in range(5):
        entries, left = traces.refresh(budget_s=1.5)
    assert (len(entries), left) == (5, 0)


def test_spans_that_arrive_are_analysed():
    whole = push_trace(number=1)
    feed = Feed(Trace(whole.trace_id, whole.spans[:4]))
    traces = AnalysedTraces(feed)
    assert traces.complete()[0].row["incomplete"] > 0
    feed.traces[whole.trace_id] = (whole, 1)
    assert traces.complete()[0].row["incomplete"] == 0


def test_what_the_store_evicted_is_gone():
    feed = Feed(push_trace(number=1), push_trace(number=2))
    traces = AnalysedTraces(feed)
    traces.complete()
    del feed.traces[f"{1:032x}"]
    assert [e.row["id"] for e in traces.complete()] == [f"{2:032x}"]


def test_figures_of_several_hosts_are_those_of_the_report():
    loose, tight = several_hosts(1, 30 * MS), several_hosts(2, 1 * MS)
    feed = Feed(loose)
    traces = AnalysedTraces(feed)
    alone = traces.complete()[0].analysed
    feed.traces[tight.trace_id] = (tight, 0)
    together = [e.analysed for e in traces.complete()]
    assert together == analyse_all([loose, tight])
    assert together[0] != alone  # the second request's bounds are tighter, so the first was analysed again


def test_a_request_is_found_by_trace_id_and_by_request_id():
    feed = Feed(push_trace(number=1), push_trace(number=2))
    traces = AnalysedTraces(feed)
    traces.complete()
    for wanted in (f"{2:032x}", "req-2"):
        found = traces.find(wanted)
        assert found is not None
        assert found.trace_id == f"{2:032x}"
    assert traces.find("req-3") is None
    assert traces.find("f" * 32) is None
