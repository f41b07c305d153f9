"""``kvpath trace``: one request's waterfall."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

import pytest

from stack.analysis import trace_command
from stack.analysis.critical_path import aligned_request
from stack.analysis.otlp_json import document, write_file
from stack.analysis.synthetic import MS, Figures, plain_trace, pull_trace, push_trace, reuse_trace
from stack.analysis.terminal import Terminal, columns
from stack.analysis.trace import Trace
from stack.analysis.waterfall import tree_order, waterfall_text


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    trace_command.add_arguments(parser)
    return trace_command.run(parser.parse_args(arguments))


def drawn(trace: Trace, terminal: Terminal | None = None) -> str:
    return waterfall_text(*aligned_request(trace), terminal or Terminal())


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "traces.json"
    write_file(path, [push_trace(Figures(handshake=20 * MS), number=0xA1), pull_trace(number=0xB2, ranks=2)])
    return path


@pytest.mark.parametrize("wanted", ["req-161", f"{0xA1:032x}", f"{0xA1:032X}"])
def test_by_trace_id_or_request_id(file, wanted, capsys):
    assert run(wanted, "--traces", str(file)) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"trace {0xA1:032x}\nrequest req-161, mode push\nTTFT 898.7 ms\n")


def test_the_stages_are_listed_and_sum_to_ttft(file, capsys):
    run("req-161", "--traces", str(file))
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("stage "))
    end = next(i for i, line in enumerate(lines) if line.startswith("sum = TTFT"))
    rows = [line.split() for line in lines[at + 1 : end]]
    assert [row[0] for row in rows][-1] == "unexplained"
    assert sum(float(row[1]) for row in rows) == pytest.approx(float(lines[end].split()[3]))
    assert float(lines[end].split()[3]) == pytest.approx(898.7)


def test_the_path_is_marked_children_are_indented_and_links_named(file, capsys):
    run("req-161", "--traces", str(file))
    out = capsys.readouterr().out
    assert "*     kvpath.prefill.compute " in out
    assert "      kvpath.write [0] " in out
    assert "*       kvpath.write.flight [0] " in out
    assert "  kvpath.write [0] → kvpath.register" in out
    assert "  kvpath.await → kvpath.write [0]" in out


def test_the_legend_explains_what_a_newcomer_cannot_guess():
    text = " ".join(drawn(push_trace(), Terminal(120)).split())
    assert "▸ goes on after the first token" in text
    assert "[N] made by the worker of that rank" in text
    assert "it may be longer than the span of its name" in text
    assert "decode_leg_hop: D's leg sent by the router → blocks allocated on D" in text
    assert "decode_leg_hop:" not in drawn(pull_trace())


@pytest.mark.parametrize("trace", [push_trace(ranks=3), pull_trace(), plain_trace()], ids=["push", "pull", "plain"])
@pytest.mark.parametrize("width", [60, 80, 132])
def test_every_line_fits_and_ascii_is_ascii(trace, width):
    for terminal in (Terminal(width), Terminal(width, unicode=False)):
        text = drawn(trace, terminal)
        assert max(columns(line) for line in text.splitlines()) <= width
        if not terminal.unicode:
            text.encode("ascii")
        assert "\x1b" not in text


def test_bars_stand_where_the_spans_are():
    trace = pull_trace(Figures(prefill=500 * MS, first_step=500 * MS))
    lines = drawn(trace, Terminal(unicode=False)).splitlines()
    compute = next(line for line in lines if "prefill.compute" in line)[34:69]
    step = next(line for line in lines if "first_step" in line)[34:69]
    assert compute.strip(" ") == "#" * compute.count("#")
    assert compute.rindex("#") <= step.index("#")
    assert compute.count("#") in range(16, 19)
    assert step.count("#") in range(16, 19)


def test_what_runs_on_after_the_first_token_ends_in_an_arrow():
    lines = drawn(push_trace(), Terminal(unicode=False)).splitlines()
    assert next(line for line in lines if "chat smollm2" in line)[34:69].endswith("->")
    assert not next(line for line in lines if "first_step" in line)[34:69].rstrip().endswith(">")


def test_a_failed_request_shows_what_failed(golden):
    text = drawn(golden("push_error"))
    assert "no critical path: no first_token event" in text
    assert "kvpath.leg.prefill failed: 503 503" in text
    assert "!   kvpath.leg.prefill" in text


def test_anomalies_missing_spans_and_unexplained_gaps_are_named():
    trace = pull_trace(Figures(prefill_hop=90 * MS))
    spans = [s for s in trace.spans if s.name != "kvpath.blocks.held"]
    spans = [replace(s, start_ns=s.end_ns + 7 * MS) if s.name == "kvpath.first_step" else s for s in spans]
    text = drawn(Trace(trace.trace_id, tuple(spans)))
    assert "anomaly: first_step goes back in time after notify by 7.000 ms" in text
    assert "incomplete: span: kvpath.blocks.held" in text
    assert "unexplained: 90.00 ms between route and prefill_queue" in text


def test_text_from_the_trace_is_printed_safely():
    trace = plain_trace()
    evil = [replace(s, name="chat \x1b[2J模型" * 9) if s.kind == 2 and not s.parent_span_id else s for s in trace.spans]
    text = drawn(Trace(trace.trace_id, tuple(evil)))
    assert "\x1b" not in text
    assert max(columns(line) for line in text.splitlines()) <= 80


def test_orphans_and_circles_are_still_shown():
    trace = push_trace()
    first, second = trace.spans[5], trace.spans[6]
    circle = (
        replace(first, parent_span_id=second.span_id),
        replace(second, parent_span_id=first.span_id),
        replace(trace.spans[7], parent_span_id="e" * 16),
    )
    odd = Trace(trace.trace_id, (*trace.spans[:5], *circle, *trace.spans[8:]))
    ordered = tree_order(odd)
    assert sorted(s.span_id for _, s in ordered) == sorted(s.span_id for s in odd.spans)


def test_json(file, capsys):
    assert run("req-178", "--traces", str(file), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "kvpath.path/1"
    assert found["segments"][0]["start_ns"] == 0
    assert found["segments"][-1]["end_ns"] == found["ttft_ns"]


def test_json_without_a_path_is_exit_1(golden, tmp_path, capsys):
    write_file(tmp_path / "t.json", [golden("push_error")])
    assert run("golden-6", "--traces", str(tmp_path / "t.json"), "--json") == 1
    assert "no critical path" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "says"), [("nobody", "no trace and no request 'nobody'"), ("0000", "fits 2 traces")]
)
def test_an_id_that_fits_none_or_many_is_one_line(file, wanted, says, capsys):
    assert run(wanted, "--traces", str(file)) == 1
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_from_a_store_by_request_id(store, capsys):
    trace = push_trace()
    store.answer("/api/search", {"traces": [{"traceID": trace.trace_id}]})
    store.answer(f"/api/traces/{trace.trace_id}", document([trace]))
    assert run('re"q', "--url", store.url) == 0
    assert "kvpath.request_id+%3D+%22re%5C%22q%22" in store.requests[0]
    store.requests.clear()
    assert run(trace.trace_id, "--url", store.url) == 0
    assert len(store.requests) == 1
    store.answer("/api/search", {"traces": []})
    assert run("nobody", "--url", store.url) == 1
    assert "no trace and no request" in capsys.readouterr().err


def test_a_turn_that_took_back_what_d_kept():
    text = drawn(reuse_trace(Figures(prompt_tokens=640, reused_tokens=512)))
    assert "what was kept of the turn before: hit" in text
    told = " ".join(text.split())
    assert "of 640 prompt tokens 512 were reused from D, 0 were in P's own prefix cache, 128 computed" in told
    assert "reuse_flight" in text
    assert "reuse_flight" not in drawn(pull_trace())


def test_what_d_keeps_does_not_stretch_a_picture_without_a_path():
    whole = reuse_trace(Figures(kept=480_000 * MS))
    root = whole.server_span()
    silent = Trace(whole.trace_id, tuple(replace(s, events=()) if s is root else s for s in whole.spans))
    scale = next(line for line in drawn(silent).splitlines() if line.rstrip().endswith(" ms") and "0" in line)
    assert float(scale.split()[-2].replace(",", "")) < 5_000
