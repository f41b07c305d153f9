"""The run folder: append-only, resumable, and refused rather than harmed when it is another's."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stack.analysis.synthetic import Figures
from stack.experiment.plan import Changes, make_plan
from stack.experiment.presets import DEMO
from stack.experiment.run_folder import FinishedBlock, FolderError, RunFolder
from stack.experiment.target import EarlyChoices
from stack.experiment.traced import path_row_from

PLAN = make_plan(DEMO, Changes(blocks=2))


@pytest.fixture
def rows(record):
    return record(PLAN, lambda arm, pair, index: Figures())


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run", PLAN)


def finish(folder, rows, block, attempt=1):
    own = [replace(row, attempt=attempt) for row in rows.rows if row.block == block]
    for row in own:
        folder.append_request(row)
    documents = [{"block": block, "attempt": attempt, **rows.paths[row.trace_id].document()} for row in own]
    folder.finish(FinishedBlock(block, attempt, 2.5, EarlyChoices(3, 1)), documents)
    return own


def test_what_was_finished_is_there_again(folder, rows):
    own = finish(folder, rows, 2)
    again = RunFolder.open(folder.path)
    assert again.plan == PLAN
    assert again.requests() == own
    assert {k: path_row_from(v) for k, v in again.paths().items()} == {r.trace_id: rows.paths[r.trace_id] for r in own}
    assert again.blocks() == {2: FinishedBlock(2, 1, 2.5, EarlyChoices(3, 1))}
    assert [again.finished(block) for block in PLAN.blocks[:4]] == [False, False, True, False]


def test_an_unfinished_block_counts_for_nothing_and_is_kept(folder, rows):
    folder.append_request(rows.rows[3])
    again = RunFolder.open(folder.path)
    assert again.requests() == []
    assert again.next_attempt(PLAN.blocks[rows.rows[3].block]) == 2
    own = finish(again, rows, rows.rows[3].block, attempt=2)
    assert again.requests() == own
    assert len((folder.path / "requests.jsonl").read_text().splitlines()) == 1 + len(own)


def test_a_torn_line_takes_nothing_with_it(folder, rows):
    finish(folder, rows, 2)
    for name in ("requests.jsonl", "paths.jsonl", "blocks.jsonl"):
        path = folder.path / name
        path.write_bytes(path.read_bytes() + path.read_bytes()[:30])
    again = RunFolder.open(folder.path)
    own = finish(again, rows, 3)
    assert [row.block for row in RunFolder.open(folder.path).requests()] == [2] * len(own) + [3] * len(own)
    assert sorted(RunFolder.open(folder.path).blocks()) == [2, 3]


def test_a_folder_in_use_is_not_begun_again(folder):
    with pytest.raises(FolderError, match="already holds an experiment; continue it with --resume"):
        RunFolder.create(folder.path, PLAN)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot write"):
        RunFolder.create(tmp_path / "file" / "run", PLAN)


def test_nothing_to_resume(tmp_path):
    with pytest.raises(FolderError, match="holds no experiment to resume"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schema": "kvpath.experiment/99"}, "format 'kvpath.experiment/99'"),
        ({"kvpath": "0.0.0-other"}, "written by kvpath 0.0.0-other"),
        ({"blocks": None}, "not a plan of this version"),
        ({"cells": [{"rate": 1}]}, "not a plan of this version"),
    ],
)
def test_a_folder_of_another_version_is_left_alone(folder, rows, change, problem):
    finish(folder, rows, 2)
    path = folder.path / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    before = {p.name: p.read_bytes() for p in folder.path.iterdir()}
    with pytest.raises(FolderError, match=problem) as caught:
        RunFolder.open(folder.path)
    assert "\n" not in str(caught.value)
    assert {p.name: p.read_bytes() for p in folder.path.iterdir()} == before


@pytest.mark.parametrize("content", ["[]", "{", "null", '"text"'])
def test_a_plan_that_is_none(folder, content):
    (folder.path / "plan.json").write_text(content)
    with pytest.raises(FolderError):
        RunFolder.open(folder.path)


def test_documents_are_written_whole(folder):
    folder.write("probe.json", {"a": 1})
    assert folder.read("probe.json") == {"a": 1}
    assert folder.read("result.json") is None
    assert not list(folder.path.glob("*.partial"))
    (folder.path / "probe.json").write_text("{")
    with pytest.raises(FolderError, match="not JSON"):
        folder.read("probe.json")
