"""The result document and its text: complete, honest about what is missing, 80 columns wide."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from connector.stages import STAGE_NAMES
from stack.analysis.synthetic import MS, Figures
from stack.analysis.terminal import Terminal
from stack.experiment.plan import Changes, make_plan
from stack.experiment.plan_text import plan_text
from stack.experiment.presets import DEMO, SEED
from stack.experiment.result import Measured, make_result
from stack.experiment.result_text import result_text

PLAN = make_plan(DEMO)


def figures(arm, pair, index):
    own = random.Random(f"{arm} {pair} {index}")
    return Figures(flight=round(own.gauss(20, 2) * MS), prefill=round(random.Random(f"{pair}").gauss(900, 60) * MS))


def result_of(recorded, **more):
    return make_result(Measured(recorded.plan, recorded.rows, recorded.paths, recorded.blocks, **more))


def test_the_document_has_every_figure_at_every_percentile(record):
    document = json.loads(json.dumps(result_of(record(PLAN, figures)).document()))
    (cell,) = document["cells"]
    assert document["schema"] == "kvpath.experiment.result/1"
    assert set(cell["figures"]) == {"ttft", "tpot", "total", "itl", "tokens_per_s", "requests_per_s"}
    assert set(cell["stages"]) == {*STAGE_NAMES, "unexplained", "outside"}
    for compared in (*cell["figures"].values(), *cell["stages"].values()):
        assert set(compared) == {"mean", "p50", "p90", "p99"}
        for one in compared.values():
            assert one["difference"]["low"] <= one["difference"]["value"] <= one["difference"]["high"]
    assert [(a["name"], a["seen"], a["counted"], a["traced"], a["warm_up_excluded"]) for a in cell["arms"]] == [
        ("push", 16, 16, 16, 1),
        ("pull", 16, 16, 16, 1),
    ]
    assert cell["paired_test_of_ttft"]["requests"] == 16
    verdict = cell["verdict"]
    assert sum(part["difference_ns"] for part in verdict["split"]["parts"]) == verdict["split"]["difference_ns"]
    assert document["verdict"]["headline"] == verdict["headline"] == document["verdict"]["sentences"][0]


def test_throughput_is_per_block(record):
    rates = result_of(record(PLAN, figures)).cells[0].figures["tokens_per_s"]["mean"]
    # Two requests of five tokens, one second apart, the second answered within a second or so.
    assert rates.first == pytest.approx(10 / 2.0, rel=0.2)


def test_prompts_are_paired_across_arms(record):
    recorded = record(PLAN, figures)
    recorded.rows = [r for r in recorded.rows if not (r.mode == "pull" and r.index == 1)]
    assert result_of(recorded).cells[0].paired.requests == 8


def test_a_client_that_could_not_keep_up_is_told(record):
    recorded = record(PLAN, figures)
    recorded.rows = [replace(row, sent_ns=row.scheduled_ns + 200 * MS) for row in recorded.rows]
    assert any(
        "the client sent late: p99 of the lag is 200.0 ms" in n for n in result_of(recorded).cells[0].verdict.notes
    )


def test_no_traces_no_stages(record):
    recorded = record(PLAN, figures)
    recorded.paths = {}
    (cell,) = result_of(recorded).cells
    assert cell.stages == {}
    assert cell.verdict.split is None
    assert any("TTFT is not split" in note for note in cell.verdict.notes)


@pytest.mark.parametrize("unicode", [True, False])
def test_the_text_fits_80_columns(record, unicode):
    text = result_text(result_of(record(PLAN, figures), notes=("a note",)), Terminal(unicode=unicode))
    assert max(map(len, text.splitlines())) <= 80
    for expected in ("TTFT p50", "flight p99~", "Verdict", "No difference", "note: a note", "0 in both: handshake"):
        assert expected in text
    assert "outside: the client's TTFT less the router's" in " ".join(text.split())
    assert "difference: push minus pull, ratio: push over pull" in " ".join(text.split())


def test_several_cells_have_a_short_table_and_a_verdict_each(record):
    plan = make_plan(SEED, Changes(rates=(4, 8), input_tokens=(8192, 16384), requests=2))
    result = result_of(record(plan, figures))
    text = result_text(result, Terminal())
    assert max(map(len, text.splitlines())) <= 80
    assert "TTFT p90" not in text
    assert text.count("Verdict") == 4
    assert "TTFT 1744 ms pull; here mean" in " ".join(text.split())
    assert len(result.document()["verdict"]["sentences"]) == 4
    assert [len(cell.published) for cell in result.cells] == [0, 0, 0, 4]


def test_reasons_are_listed(record):
    recorded = record(PLAN, figures)
    recorded.rows = [replace(r, error="timeout", ttft_ns=None) if r.block == 2 else r for r in recorded.rows]
    assert "left out: 2 of error: timeout" in result_text(result_of(recorded), Terminal())


def test_the_plan_as_text(record):
    text = plan_text(make_plan(SEED), Terminal())
    assert max(map(len, text.splitlines())) <= 80
    for expected in (
        "8 req/s, 16384 tokens in: TTFT 1744 ms pull",
        "8 req/s, 16384 tokens in: TTFT 540 ms push",
        "8 req/s, 16384 tokens in: TPOT 10.4 ms pull",
        "8 req/s, 16384 tokens in: TPOT 7 ms push",
        "AB BA AB BA AB BA (A push, B pull)",
        "published for vLLM's push connector, Qwen3-32B, 1P1D on EFA:",
        "Qwen3-32B",
    ):
        assert expected in " ".join(text.split())
