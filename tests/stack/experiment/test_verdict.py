"""Verdicts on known truths: injected delays are named, and a transport is never taken for a protocol."""

from __future__ import annotations

import random
import re
from dataclasses import asdict, replace

import pytest

from connector import names
from connector.stages import STAGE_NAMES
from stack.analysis.synthetic import MS, US, Figures
from stack.experiment.plan import Changes, make_plan
from stack.experiment.presets import DEMO
from stack.experiment.result import Measured, make_result
from stack.experiment.split import PARTS
from stack.experiment.target import EarlyChoices
from stack.experiment.verdict import FASTER, NO_DATA, NO_DIFFERENCE, TOO_FEW, TRANSPORT

PLAN = make_plan(DEMO, Changes(rates=(1.0,), input_tokens=(8192,), requests=4, blocks=6))
PUSH, PULL = 0, 1
USUAL = Figures()


def noisy(arm: int, pair: int, index: int, base: Figures = USUAL, spread: float = 0.03, **fixed: int) -> Figures:
    """``base`` with a spread on every duration; prefill is the pair's and the prompt's, the rest the request's."""
    prompt, own = random.Random(f"{pair} {index}"), random.Random(f"{arm} {pair} {index}")
    changed = {
        name: round(value * (prompt if name == "prefill" else own).gauss(1, spread))
        for name, value in asdict(base).items()
        if value and name != "tail"
    }
    return replace(base, **changed | fixed)


def verdict_of(recorded, probe=None, **more):
    measured = Measured(recorded.plan, recorded.rows, recorded.paths, recorded.blocks, probe, **more)
    (cell,) = make_result(measured).cells
    return cell.verdict


def measured(operation, layout, prepare_ms, submit_ms, total_ms, rate):
    descriptors = 576_000_000 // 65536
    return {
        "operation": operation,
        "layout": layout,
        "bytes": 576_000_000,
        "descriptors": descriptors,
        "contiguous_runs": 1 if layout == "contiguous" else descriptors,
        "prepare_ns": round(prepare_ms * 1e6),
        "submit_ns": round(submit_ms * 1e6),
        "total_ns": round(total_ms * 1e6),
        "gigabytes_per_second": rate,
    }


H200 = {
    "schema": "kvpath.probe/1",
    "transport": {
        "WRITE": {"name": "cuda_ipc zero-copy", "emulated": False},
        "READ": {"name": "software emulation over tcp", "emulated": True},
    },
    "results": [
        measured("WRITE", "contiguous", 0.3, 0.07, 0.66, 922),
        measured("WRITE", "fragmented", 1.1, 108, 109, 5.5),
        measured("READ", "contiguous", 0.3, 0.03, 1028, 0.59),
        measured("READ", "fragmented", 0.8, 177, 1184, 0.51),
    ],
    "notes": [],
}
HOST_BUFFERS = {
    "schema": "kvpath.probe/1",
    "transport": {"WRITE": {"name": "tcp", "emulated": False}, "READ": {"name": "tcp", "emulated": False}},
    "results": [
        measured("WRITE", "contiguous", 0.3, 0.1, 117.6, 4.9),
        measured("READ", "contiguous", 0.3, 0.1, 112.9, 5.1),
    ],
    "notes": [],
}

# Where a delay can be injected: field of the synthetic request → stage that must show it, and in which modes.
DELAY = 150 * MS
PLACES = [
    ("route", "route", (PUSH, PULL)),
    ("prefill_queue", "prefill_queue", (PUSH, PULL)),
    ("prefill", "prefill", (PUSH, PULL)),
    ("response_hop", "handoff", (PULL,)),
    ("late_route", "handoff", (PULL,)),
    ("decode_hop", "handoff", (PULL,)),
    ("handshake", "handshake", (PUSH, PULL)),
    ("prepare", "prepare", (PUSH, PULL)),
    ("submit", "submit", (PUSH, PULL)),
    ("flight", "flight", (PUSH, PULL)),
    ("completion_hop", "notify", (PUSH,)),
    ("notify", "notify", (PUSH, PULL)),
    ("first_step", "first_step", (PUSH, PULL)),
    ("deliver", "deliver", (PUSH, PULL)),
    ("prefill_hop", "unexplained", (PUSH, PULL)),
]


@pytest.fixture(scope="module")
def quiet(record):
    """What the same requests show without any delay."""
    return verdict_of(record(PLAN, noisy), HOST_BUFFERS).split


@pytest.mark.parametrize(("place", "stage", "arm"), [(p, s, arm) for p, s, arms in PLACES for arm in arms])
def test_an_injected_delay_is_attributed_and_named(record, quiet, place, stage, arm):
    def figures(of_arm, pair, index):
        made = noisy(of_arm, pair, index)
        return replace(made, **{place: getattr(made, place) + DELAY}) if of_arm == arm else made

    verdict = verdict_of(record(PLAN, figures), HOST_BUFFERS)
    (part,) = [part for part in verdict.split.parts if stage in part.stages]
    (before,) = [part for part in quiet.parts if stage in part.stages]
    found = (part.stages[stage] - before.stages[stage]) * (1 if arm == PUSH else -1)
    assert found == pytest.approx(DELAY, rel=0.1)
    assert verdict.split.largest is part
    slower, quicker = (names.MODE_PULL, names.MODE_PUSH) if arm == PULL else (names.MODE_PUSH, names.MODE_PULL)
    assert (verdict.kind, verdict.faster) == (FASTER, quicker)
    assert f"longer with {slower} than with {quicker}" in verdict.headline
    assert any(f"The largest part is {part.name}, mainly {stage}." == s for s in verdict.sentences)


def test_a_late_registration_is_handoff_and_push_pays_for_it(record):
    """Before the registration is sent: beside prefill it costs nothing, beyond prefill it is handoff."""

    def figures(arm, pair, index):
        made = noisy(arm, pair, index)
        return replace(made, register=made.register + made.prefill + DELAY) if arm == PUSH else made

    verdict = verdict_of(record(PLAN, figures))
    (part,) = [part for part in verdict.split.parts if part.name == "coordination"]
    assert part.stages["handoff"] == pytest.approx(DELAY - 8 * MS, rel=0.1)  # pull's own handoff is 8.4 ms
    assert verdict.split.largest is part
    assert verdict.price.registration_last == 1.0
    assert any("registration came after P had finished in 100%" in s for s in verdict.sentences)


def test_a_registration_beside_prefill_costs_nothing(record):
    def figures(arm, pair, index):
        made = noisy(arm, pair, index)
        return replace(made, register=made.register + DELAY) if arm == PUSH else made

    verdict = verdict_of(record(PLAN, figures))
    assert verdict.price.registration_last == 0.0
    assert abs(verdict.split.largest.difference_ns) < 20 * MS


def test_the_same_twice_is_no_difference(record):
    plan = make_plan(DEMO, Changes(modes=("push", "push"), requests=4))
    verdict = verdict_of(record(plan, noisy))
    assert (verdict.kind, verdict.faster) == (NO_DIFFERENCE, None)
    assert verdict.headline.startswith("No difference: median TTFT")


def test_a_difference_within_the_noise_is_none(record):
    def figures(arm, pair, index):
        drift = random.Random(f"{arm} {pair}").gauss(0, 60)  # blocks differ by more than the modes
        return noisy(arm, pair, index, notify=round(100 * MS + drift * MS + (5 * MS if arm else 0)))

    assert verdict_of(record(PLAN, figures)).kind == NO_DIFFERENCE


def test_few_blocks_are_too_few(record):
    plan = make_plan(DEMO, Changes(requests=4, blocks=4))
    recorded = record(plan, lambda arm, pair, index: noisy(arm, pair, index, flight=(1 + 100 * arm) * MS))
    verdict = verdict_of(recorded, HOST_BUFFERS)
    assert (verdict.kind, verdict.faster) == (TOO_FEW, None)
    assert "4 pairs of blocks, 6 are needed" in verdict.headline


def test_an_arm_without_answers_is_no_data(record):
    recorded = record(PLAN, noisy)
    recorded.rows = [r if r.mode == "push" else replace(r, error="http_500", ttft_ns=None) for r in recorded.rows]
    assert verdict_of(recorded).kind == NO_DATA


# --- Transport is not protocol: one H200, both engines on it; 576 MB in 64 KiB blocks (8k tokens) -----------------


def on_one_h200(arm, pair, index):
    """8k tokens at 1 req/s: TTFT p50 0.56 s against 28 s."""
    fast = Figures(prefill=420 * MS, prepare=1100 * US, submit=108 * MS, flight=1 * MS, first_step=20 * MS)
    slow = replace(fast, submit=177 * MS, flight=27_300 * MS)
    return noisy(arm, pair, index, base=slow if arm == PULL else fast)


def over_host_buffers(arm, pair, index):
    """4k tokens at 1 req/s: TTFT p50 1031 ms push, 1059 ms pull."""
    base = Figures(prefill=850 * MS, flight=(94 if arm == PUSH else 114) * MS, first_step=70 * MS)
    return noisy(arm, pair, index, base=base)


@pytest.mark.parametrize("probe", [H200, None], ids=["probed", "by the transfers alone"])
def test_the_h200_table_is_about_the_transport(record, probe):
    recorded = record(PLAN, on_one_h200)
    if probe is None:
        recorded.paths = {
            trace_id: replace(p, moved=replace(p.moved, bytes=576_000_000)) for trace_id, p in recorded.paths.items()
        }
    verdict = verdict_of(recorded, probe)
    assert (verdict.kind, verdict.faster) == (TRANSPORT, None)
    assert verdict.headline.startswith("This comparison is about the transport, not about push and pull")
    assert not any("push is faster" in sentence for sentence in verdict.sentences)
    assert verdict.split.largest.name == "transfer"
    assert verdict.document()["about_transport"] is True
    if probe is not None:
        assert "READ is emulated in software (software emulation over tcp)" in verdict.headline
        assert "5.5 GB/s by WRITE (push) and 0.51 GB/s by READ (pull) with fragmented blocks" in verdict.headline


@pytest.mark.parametrize("probe", [HOST_BUFFERS, None], ids=["probed", "by the transfers alone"])
def test_matched_directions_are_not(record, probe):
    verdict = verdict_of(record(PLAN, over_host_buffers), probe)
    assert verdict.kind in (FASTER, NO_DIFFERENCE)
    assert not any("about the transport" in sentence for sentence in verdict.sentences)
    assert verdict.document()["about_transport"] is False


def test_two_arms_of_one_mode_are_never_about_the_transport(record):
    plan = make_plan(DEMO, Changes(modes=("pull", "pull"), requests=4))
    assert verdict_of(record(plan, noisy), H200).kind == NO_DIFFERENCE


# --- What push costs and gains ------------------------------------------------------------------------------------


def test_the_early_choice_of_d_is_told(record):
    recorded = record(PLAN, noisy)
    recorded.blocks = {n: replace(b, early_choices=EarlyChoices(3, 1)) for n, b in recorded.blocks.items()}
    verdict = verdict_of(recorded, decode_engines=3)
    # Warm-up and pull do not count: six push blocks of four choices.
    assert (verdict.price.choices, verdict.price.regretted) == (24, 6)
    assert any("would have been another one in 25% of 24 requests" in s for s in verdict.sentences)
    assert any("one decode engine" in s for s in verdict_of(recorded, decode_engines=1).sentences)


def test_how_long_p_and_d_keep_blocks_is_told(record):
    verdict = verdict_of(record(PLAN, lambda arm, pair, index: noisy(arm, pair, index, flight=(9 + 91 * arm) * MS)))
    held = verdict.price.held
    assert -held.difference.value == pytest.approx(91 * MS + 8.4 * MS, rel=0.05)
    assert held.differs
    assert verdict.price.reserved_ns == pytest.approx(800 * MS, rel=0.05)
    (told,) = [s for s in verdict.sentences if "P held its blocks after prefill for" in s]
    assert "push minus pull -99" in told
    assert "95% interval -" in told


def test_no_difference_in_how_long_p_keeps_blocks_has_its_interval(record):
    held = [s for s in verdict_of(record(PLAN, balanced)).sentences if "P held its blocks" in s]
    assert re.search(r": no difference \(push minus pull \S+ ms, 95% interval -\S+ to \S+ ms\)\.$", held[0]), held


def balanced(arm: int, pair: int, index: int) -> Figures:
    """P holds its blocks equally long in both modes: pull's 8.4 ms until D has allocated are made up for."""
    return noisy(
        arm, pair, index, spread=0.2, flight=(20 if arm == PUSH else 12) * MS + random.Random(pair).randrange(MS)
    )


def test_what_has_no_name_comes_last_however_large(record):
    def figures(arm, pair, index):
        return noisy(arm, pair, index, spread=0.0, prefill=800 * MS + 90 * MS * arm, flight=9 * MS + 20 * MS * arm)

    (causes,) = [s for s in verdict_of(record(PLAN, figures)).sentences if s.startswith("The means")]
    assert causes.index("everything else") > causes.index("the transfer over the link")
    assert causes.index("everything else") > causes.index("coordination")
    assert "The largest part is rest, mainly prefill." in verdict_of(record(PLAN, figures)).sentences


def test_a_comparison_without_push_has_no_price(record):
    assert verdict_of(record(make_plan(DEMO, Changes(modes=("pull", "pull"))), noisy)).price is None


def test_every_stage_is_in_a_part():
    assert set(STAGE_NAMES) <= {stage for stages in PARTS.values() for stage in stages}
