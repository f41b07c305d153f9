"""What reuse saved against what it cost, whichever arm comes first, and when what was said of P's cache cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector import names
from stack.analysis.synthetic import MS, Figures
from stack.experiment.plan import Changes, make_plan
from stack.experiment.presets import REUSE
from stack.experiment.result import Measured, make_result
from stack.experiment.sentences import saving_sentences

MODES = (names.MODE_PULL, names.MODE_REUSE)


def figures(mode: str, noise: int = 0) -> Figures:
    prefill = 200 if mode == names.MODE_REUSE else 500
    return Figures(prefill=(prefill + noise) * MS, prompt_tokens=640, reused_tokens=512, reuse_flight=20 * MS)


def saving(record, modes=MODES, blocks=6, cache="off", noise=lambda pair: 0):
    plan = make_plan(REUSE, Changes(requests=1, blocks=blocks, modes=modes, prefill_cache=cache))
    recorded = record(plan, lambda arm, pair, index: figures(modes[arm], noise(pair)))
    (cell,) = make_result(Measured(plan, recorded.rows, recorded.paths, recorded.blocks)).cells
    return cell.verdict.saving


@pytest.mark.parametrize("modes", [MODES, MODES[::-1]])
def test_a_saving_is_negative_and_a_cost_positive_whichever_arm_comes_first(record, modes):
    found = saving(record, modes)
    assert (found.prefill.difference_ns, found.prefill.stages) == (-300 * MS, {"prefill": -300 * MS})
    assert found.taking_back.difference_ns == 22_620_000
    assert found.prefill.low_ns <= found.prefill.high_ns < 0 < found.taking_back.low_ns


def test_how_the_tokens_came_to_p(record):
    found = saving(record)
    assert (found.pull.reused, found.pull.computed, found.reuse.reused, found.reuse.computed) == (0, 640, 512, 128)
    assert found.read_back_bytes == 9_437_184
    assert found.read_back_ns == 20_120_000


def test_the_sentences_carry_their_numbers(record):
    sentences = saving_sentences(saving(record))
    assert sentences[0] == (
        "Of prefill, reuse saved 300.0 ms (95% interval 300.0 to 300.0 ms) a turn; "
        "taking D's KV cache back cost 22.62 ms (95% interval 22.62 to 22.62 ms)."
    )
    assert sentences[1].startswith("Of each prompt P computed 128 tokens with reuse (512 came back from D, 0 ")
    assert sentences[2] == "12 of 12 turns found the turn before."
    assert sentences[3] == "P's READ moved 9.44 MB in 20.12 ms (medians; 0.469 GB/s)."
    assert sentences[4].startswith("P's prefix cache was off")


def test_turns_that_found_nothing_are_counted_with_their_reason(record):
    found = replace(saving(record), lookups={names.REUSE_HIT: 9, names.REUSE_GONE: 2, names.REUSE_EDITED: 1})
    assert saving_sentences(found)[2] == "9 of 12 turns found the turn before; the others: 2 gone, 1 edited."


def test_a_difference_within_its_noise_is_none(record):
    found = saving(record)
    quiet = replace(found, prefill=replace(found.prefill, difference_ns=-2 * MS, low_ns=-9.0 * MS, high_ns=5.0 * MS))
    sentence = saving_sentences(quiet)[0].replace("\N{MINUS SIGN}", "-")
    assert "reuse made no difference (-2.000 ms, -9.000 to 5.000 ms) a turn" in sentence


@pytest.mark.parametrize(
    ("cache", "held", "problem"),
    [
        ("off", 0.0, ""),
        ("on", 400.0, ""),
        ("", 400.0, ""),
        ("off", 400.0, "P's prefix cache is said to be off, but held 400 tokens a prompt"),
        ("on", 0.0, "P's prefix cache is said to be on, but held nothing of any prompt"),
    ],
)
def test_what_was_said_of_ps_cache_is_held_against_what_it_held(record, cache, held, problem):
    found = saving(record)
    assert replace(found, prefill_cache=cache, pull=replace(found.pull, cached=held)).contradiction == problem


def test_reuse_against_itself_has_no_saving(record):
    assert saving(record, (names.MODE_REUSE, names.MODE_REUSE)) is None


def test_a_published_comparison_stands_beside_as_what_it_is(record):
    plan = make_plan(REUSE, Changes(requests=1, blocks=6))
    recorded = record(plan, lambda arm, pair, index: figures(MODES[arm]))
    (cell,) = make_result(Measured(plan, recorded.rows, recorded.paths, recorded.blocks)).cells
    told = {(p.subject.split(",")[0], p.mode): p.milliseconds for p in cell.published}
    assert told == {
        ("Qwen3-32B", "pull"): 778,
        ("Qwen3-32B", "reuse"): 460,
        ("GLM-5-FP8", "pull"): 2334,
        ("GLM-5-FP8", "reuse"): 702,
    }
    assert all("P's prefix cache off, to simulate lost context" in p.subject for p in cell.published)
