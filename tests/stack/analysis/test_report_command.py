"""``kvpath report``: the table, the JSON, and clear ends for wrong input."""

from __future__ import annotations

import argparse
import json

import pytest

from connector import names
from stack.analysis import report_command
from stack.analysis.compare import analyse_all, compare
from stack.analysis.otlp_json import document, write_file
from stack.analysis.report_text import report_text
from stack.analysis.synthetic import MS, Figures, plain_trace, pull_trace, push_trace, reuse_trace
from stack.analysis.terminal import Terminal, columns


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    report_command.add_arguments(parser)
    return report_command.run(parser.parse_args(arguments))


def some_traces() -> list:
    return [
        *(push_trace(Figures(prefill=n * 50 * MS, decode_hop=9 * n * MS), number=n) for n in range(1, 13)),
        *(pull_trace(Figures(prefill=n * 50 * MS), number=100 + n) for n in range(1, 13)),
        plain_trace(number=300),
    ]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "traces.json"
    write_file(path, some_traces())
    return path


def test_the_table_puts_push_beside_pull_and_adds_up(file, capsys):
    assert run("--traces", str(file)) == 0
    out = capsys.readouterr().out
    assert "push (12 requests)" in out.splitlines()[1]
    assert "pull (12 requests)" in out.splitlines()[1]
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[3:16]}
    assert rows["handoff"][:1] == ["0"]
    assert rows["TTFT"][3] == "100.0%"
    for at in (3, 7):
        shares = sum(float(cells[at].rstrip("%")) for stage, cells in rows.items() if stage != "TTFT")
        assert shares == pytest.approx(100, abs=0.6)
    assert "last to arrive at the rendezvous: prefill 12" in out
    assert "~ too few requests to believe this percentile (needed: p50 10, p90 50, p99 500)." in out
    assert "plain (1 request)" in out


def reuse_traces() -> list:
    """Four conversations of three turns, the first of which finds nothing."""
    outcomes = (names.REUSE_MISS, names.REUSE_HIT, names.REUSE_HIT)
    return [reuse_trace(outcome=o, number=500 + 3 * c + n) for c in range(4) for n, o in enumerate(outcomes)]


def test_reuse_stands_beside_the_others_with_its_tokens():
    compared = compare(analyse_all([*some_traces(), *reuse_traces()]))
    narrow, wide = (report_text(compared, Terminal(width=width)).splitlines() for width in (80, 111))
    titles = [line.split() for line in narrow if "(12 requests)" in line]
    assert [[word for word in line if word.isalpha() and word != "requests)"] for line in titles] == [
        ["push", "pull"],
        ["pull", "reuse"],
    ]
    assert all(f"{mode} (12 requests)" in wide[1] for mode in ("push", "pull", "reuse"))
    rows = {line.split()[0]: line.split()[1:] for line in wide[3:21]}
    assert rows["reuse_flight"][0] == rows["reuse_flight"][4] == "0"
    assert rows["reuse_flight"][8] == "6.000"
    text = "\n".join(narrow)
    assert "what was kept of the turn before: hit 8, miss 4" in text
    assert "prompt tokens: 768 reused from D, 768 computed by P" in text


def test_reuses_stages_are_not_shown_where_nothing_is_reused():
    assert "reuse_" not in report_text(compare(analyse_all(some_traces())), Terminal())


@pytest.mark.parametrize("terminal", [Terminal(), Terminal(unicode=False), Terminal(width=60)])
def test_every_line_fits(terminal):
    traces = [*some_traces(), push_trace(Figures(flight=100_000 * MS, prefill=3_000_000 * MS), number=900)]
    text = report_text(compare(analyse_all(traces)), terminal)
    assert max(columns(line) for line in text.splitlines()) <= max(terminal.width, 80)
    assert "\x1b" not in text
    if not terminal.unicode:
        text.encode("ascii")


def test_colour_changes_nothing_but_colour():
    comparison = compare(analyse_all(some_traces()))
    plain, colored = report_text(comparison, Terminal()), report_text(comparison, Terminal(color=True))
    assert colored != plain
    stripped = colored
    for code in ("\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[33m"):
        stripped = stripped.replace(code, "")
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


def test_json_has_a_version_and_a_row_a_request(file, capsys):
    assert run("--traces", str(file), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "kvpath.report/1"
    assert len(found["requests"]) == found["traces"] == 25
    assert found["modes"]["push"]["believed"] == {"p50": True, "p90": False, "p99": False}
    for row in found["requests"]:
        assert sum(row["stages"].values()) + row["unexplained_ns"] == row["ttft_ns"]
    push = found["modes"]["push"]
    assert push["stages"]["prefill"]["time"]["p50"] == 325 * MS
    assert push["counted"] == 12


def test_incomplete_and_failed_requests_are_named(golden, tmp_path, capsys):
    whole, failed = golden("push_prefill_last"), golden("push_error")
    lossy = type(whole)(whole.trace_id, tuple(s for s in whole.spans if s.name != "kvpath.blocks.held"))
    write_file(tmp_path / "t.json", [lossy, failed])
    assert run("--traces", str(tmp_path / "t.json")) == 0
    out = capsys.readouterr().out
    assert "push: 2 seen, 1 counted, 1 left out (1 failed), 1 incomplete" in out
    assert "incomplete: 1 × span: kvpath.blocks.held" in out  # noqa: RUF001
    assert "left out: 1 × error: prefill_unavailable" in out  # noqa: RUF001


def test_the_legend_says_what_a_stage_a_share_and_an_overlap_are(golden, tmp_path, capsys):
    write_file(tmp_path / "t.json", [golden("push_prefill_last")])
    run("--traces", str(tmp_path / "t.json"))
    text = " ".join(capsys.readouterr().out.split())
    assert "may be longer than the span of its name. share: of each request's TTFT, mean over requests." in text
    assert "registration: blocks allocated on D → their registration sent to P." in text


def test_clock_uncertainty_is_printed(golden, tmp_path, capsys):
    write_file(tmp_path / "t.json", [golden("pull_cross_host")])
    assert run("--traces", str(tmp_path / "t.json")) == 0
    assert "clocks of different hosts: uncertain by up to 8.000 ms" in capsys.readouterr().out


def test_the_newest_of_a_file(file, capsys):
    assert run("--traces", str(file), "--limit", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["traces"] == 2


def test_from_a_store(store, capsys):
    trace = push_trace()
    store.answer("/api/search", {"traces": [{"traceID": trace.trace_id, "startTimeUnixNano": "1"}]})
    store.answer(f"/api/traces/{trace.trace_id}", document([trace]))
    assert run("--url", store.url, "--since", "10m") == 0
    assert "push (1 request)" in capsys.readouterr().out


def test_nothing_to_compare(store, capsys):
    store.answer("/api/search", {"traces": []})
    assert run("--url", store.url) == 0
    assert capsys.readouterr().out.startswith("No traces")
    assert run("--url", store.url, "--json") == 0
    assert json.loads(capsys.readouterr().out)["modes"] == {}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--traces", "/nowhere.json"], 1, "cannot read /nowhere.json: No such file"),
        (["--traces", "/nowhere.json", "--since", "1h"], 2, "--since"),
        (["--url", "localhost"], 1, "http://"),
    ],
)
def test_wrong_input_ends_with_one_line(arguments, code, says, capsys):
    assert run(*arguments) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--since", "yesterday"], ["--limit", "0"], ["--url", "x", "--traces", "y"]])
def test_a_wrong_command_line_is_exit_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err


def test_a_result_is_for_the_page_and_must_be_one(tmp_path, capsys):
    traces = tmp_path / "traces.json"
    write_file(traces, [push_trace()])
    (tmp_path / "wrong.json").write_text("{}")
    for arguments, words in (
        (["--result", str(tmp_path)], "--result is for --html"),
        (["--result", str(tmp_path / "wrong.json"), "--html", str(tmp_path / "r.html")], "there is no verdict in it"),
        (["--result", str(tmp_path / "none.json"), "--html", str(tmp_path / "r.html")], "there is no such file"),
    ):
        assert run("--traces", str(traces), *arguments) == 2
        errors = capsys.readouterr().err
        assert errors.count("\n") == 1
        assert words in errors
    assert not (tmp_path / "r.html").exists()
