"""When a comparison is about the transport: by the probe, by the transfers' own rates, by emulation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stack.experiment.link import NOTHING, PROBE, TRANSFERS, judge_link, prediction_notes
from stack.experiment.traced import Moved

MB = 1_000_000
RESULTS = Path(__file__).parents[3] / "stack" / "experiment" / "results"


def result(operation, layout, rate, size=576 * MB, descriptors=1000, runs=1):
    return {
        "operation": operation,
        "layout": layout,
        "bytes": size,
        "descriptors": descriptors,
        "contiguous_runs": descriptors if layout == "fragmented" else runs,
        "prepare_ns": 1,
        "submit_ns": 1,
        "total_ns": round(size / rate) if rate else 0,
        "gigabytes_per_second": rate,
    }


def probe(*results, emulated=(), notes=()):
    transport = {op: {"name": f"{op} lane", "emulated": op in emulated} for op in ("READ", "WRITE")}
    return {"schema": "kvpath.probe/1", "transport": transport, "results": list(results), "notes": list(notes)}


def both(layout, write, read, **more):
    return [result("WRITE", layout, write, **more), result("READ", layout, read, **more)]


def moved(operation, rate, count=5, size=10 * MB, runs=1, descriptors=100, gap=0):
    return [Moved(operation, size, descriptors, runs, round(size / rate), gap)] * count


def test_equal_directions_are_not_about_the_transport():
    link = judge_link(probe(*both("contiguous", 5.1, 4.9), *both("fragmented", 3.0, 2.0)), [])
    assert (link.source, link.reasons) == (PROBE, ())
    assert [(r.condition, r.write, r.read) for r in link.rates] == [
        ("contiguous blocks", 5.1, 4.9),
        ("fragmented blocks", 3.0, 2.0),
    ]


@pytest.mark.parametrize(("write", "read"), [(10.1, 5.0), (5.0, 10.1)])
def test_directions_that_differ_more_than_twofold_are(write, read):
    (reason,) = judge_link(probe(*both("fragmented", write, read)), []).reasons
    assert f"{write:.3g} GB/s by WRITE (push) and {read:.3g} GB/s by READ (pull) with fragmented blocks" in reason


def test_twice_is_not_more_than_twofold():
    assert judge_link(probe(*both("contiguous", 10.0, 5.0)), []).reasons == ()


def test_software_emulation_alone_is_about_the_transport():
    link = judge_link(probe(*both("contiguous", 5, 5), emulated=("READ",)), [])
    assert link.reasons == ("READ is emulated in software (READ lane)",)
    assert link.transports == {"READ": "READ lane", "WRITE": "WRITE lane"}


def test_the_largest_size_decides():
    document = probe(*both("contiguous", 1.0, 9.0, size=MB), *both("contiguous", 5.0, 5.0))
    assert judge_link(document, []).reasons == ()


def test_a_direction_that_does_not_move_at_all():
    assert "a factor of inf" in judge_link(probe(*both("contiguous", 5.0, 0.0)), []).reasons[0]


def test_without_a_probe_the_transfers_decide():
    link = judge_link(None, moved("WRITE", 6.0) + moved("READ", 2.0))
    assert link.source == TRANSFERS
    assert "with the experiment's own transfers: a factor of 3" in link.reasons[0]
    assert judge_link(None, moved("WRITE", 6.0) + moved("READ", 4.0)).reasons == ()


def test_transfers_of_a_busy_moment_are_not_the_link():
    """Small transfers over one shared memory: the medians differ, the best of both directions do not."""
    transfers = [*moved("WRITE", 2.9), *moved("READ", 1.05), *moved("READ", 2.8, count=1)]
    assert judge_link(None, transfers).reasons == ()


def test_the_probe_is_believed_before_the_transfers():
    link = judge_link(probe(*both("contiguous", 5, 5)), moved("WRITE", 50.0) + moved("READ", 1.0))
    assert (link.source, link.reasons) == (PROBE, ())


def with_best(write, read):
    rows = both("contiguous", 3.4, 0.9)
    return probe(*({**r, "best_gigabytes_per_second": b} for r, b in zip(rows, (write, read), strict=True)))


def test_a_busy_moment_is_not_the_link():
    """The medians are 3.8 times apart; where the best repetitions are not, something else had the machine."""
    assert judge_link(with_best(5.0, 4.5), []).reasons == ()
    assert judge_link(with_best(0.9, 3.4), []).reasons == ()
    assert judge_link(with_best(5.0, 1.2), []).reasons


def test_several_transfers_at_once_do_not_decide():
    rows = [{**r, "concurrency": 4} for r in both("contiguous", 9.0, 1.0)]
    document = probe(*both("contiguous", 5.0, 5.0), *rows)
    assert judge_link(document, []).reasons == ()
    assert "the probe predicts 2 ms" in prediction_notes(document, moved("WRITE", 5.0))[0]


def test_an_empty_probe_is_none():
    assert judge_link(probe(), moved("WRITE", 6.0) + moved("READ", 2.0)).source == TRANSFERS


def test_too_few_transfers_say_nothing():
    assert judge_link(None, moved("WRITE", 6.0) + moved("READ", 2.0, count=4)).source == NOTHING


def test_transfers_that_take_what_the_probe_predicts():
    (note,) = prediction_notes(probe(result("WRITE", "contiguous", 1.0)), moved("WRITE", 0.6))
    assert "took 16.7 ms (median); the probe predicts 10 ms (contiguous): they agree" in note


def test_a_transfer_is_held_against_the_layout_that_is_like_it():
    document = probe(result("WRITE", "contiguous", 100.0), result("WRITE", "fragmented", 1.0))
    (note,) = prediction_notes(document, moved("WRITE", 1.0, runs=90))
    assert "(fragmented): they agree" in note


@pytest.mark.parametrize(
    ("rate", "gap", "why"),
    [(0.2, 35 * MB, "engines poll"), (0.2, 0, "to itself"), (5.0, 0, "were faster")],
)
def test_transfers_that_the_probe_does_not_predict_are_explained(rate, gap, why):
    (note,) = prediction_notes(probe(result("READ", "contiguous", 1.0)), moved("READ", rate, gap=gap))
    assert why in note


def test_no_probe_no_prediction():
    assert prediction_notes(None, moved("WRITE", 1.0)) == []
    assert prediction_notes(probe(result("READ", "contiguous", 1.0)), moved("WRITE", 1.0)) == []


def test_a_recorded_probe_whose_table_its_own_rate_belies():
    """On an H200 UCX's last table said that WRITE was emulated, too, though it moved 419 GB/s."""
    recorded = json.loads((RESULTS / "h200-default-16.json").read_text())["probe"]
    link = judge_link(recorded, [])
    assert link.emulated == ("READ",)
    assert link.transports == {"WRITE": "unknown", "READ": "software emulation over tcp/lo"}
