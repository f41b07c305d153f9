"""The presets say what was published, and have enough blocks for an interval."""

from __future__ import annotations

import pytest

from stack.experiment.plan import make_plan
from stack.experiment.presets import PRESETS, SEED
from stack.experiment.statistics import MIN_PAIRS


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_a_preset_has_enough_blocks_for_an_interval(preset):
    assert make_plan(preset).blocks_an_arm >= MIN_PAIRS


def test_a_preset_is_found_by_its_name():
    assert all(name == preset.name for name, preset in PRESETS.items())


def test_the_seed_measures_what_was_published():
    plan = make_plan(SEED)
    cells = {(cell.rate, cell.input_tokens) for cell in plan.cells}
    assert {length for _, length in cells} == {1024, 4096, 8192, 16384}
    assert {rate for rate, _ in cells} == {1, 2, 4, 8}
    published = {(p.mode, p.metric): p.milliseconds for p in SEED.published}
    assert published == {
        ("pull", "ttft"): 1744,
        ("push", "ttft"): 540,
        ("pull", "tpot"): 10.4,
        ("push", "tpot"): 7,
    }
    assert {(p.rate, p.input_tokens) for p in SEED.published} <= cells
