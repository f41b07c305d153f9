"""The page's table is the result's own numbers, whoever wrote the rest of the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack import experiment
from stack.view.experiment import experiment_document

RESULTS = sorted((Path(experiment.__file__).parent / "results").glob("h200-*-*.json"))
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["cells", "arms", "figures", "ttft", "p50", "difference", "verdict", "link", "rates", "notes"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("file", RESULTS, ids=lambda path: path.stem)
def test_recorded_results_are_shown_whole(file):
    result = json.loads(file.read_text())["result"]
    shown = experiment_document(result)
    assert (shown["arms"], shown["difference"]) == (result["arms"], result["difference"])
    assert shown["notes"] == result["notes"]
    for cell, told in zip(result["cells"], shown["cells"], strict=True):
        rows = {row["name"]: row for row in told["figures"]}
        for statistic, own in cell["figures"]["ttft"].items():
            row = rows[f"TTFT {statistic}"]
            assert (row["first"], row["second"], row["value"]) == (
                own["first"],
                own["second"],
                own["difference"]["value"],
            )
            assert (row["low"], row["high"]) == (own["difference"]["low"], own["difference"]["high"])
        assert told["notes"] == cell["verdict"]["notes"]
        assert [(rate["write"], rate["read"]) for rate in told["rates"]] == [
            (rate["write"], rate["read"]) for rate in cell["verdict"]["link"]["rates"]
        ]
        stages = {"prefill p50", "flight mean"} if cell["stages"] else set()  # a load that was cut short has none
        assert {row["name"] for row in told["stages"]} >= stages
        assert [count["counted"] for count in told["counts"]] == [arm["counted"] for arm in cell["arms"]]


@given(st.dictionaries(st.sampled_from(["cells", "arms", "notes", "difference"]), JSON))
def test_any_other_shape_is_left_out(result):
    json.dumps(experiment_document(result), allow_nan=False)
