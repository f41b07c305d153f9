"""Blocks in Grafana: every one is there with its time and mode, and no failure stops or delays the experiment."""

from __future__ import annotations

import itertools
import threading

import pytest

from connector import names
from stack.experiment import annotations
from stack.experiment.annotations import BlockAnnotations
from stack.experiment.plan import Changes, make_plan
from stack.experiment.presets import DEMO
from stack.experiment.run import Setup, run_experiment
from stack.experiment.run_folder import RunFolder
from stack.grafana.annotate import Annotator
from stack.grafana.fake import FakeGrafana, serving
from stack.grafana.settings import GrafanaSettings

PLAN = make_plan(DEMO, Changes(rates=(400.0,), input_tokens=(20,), output_tokens=4, requests=3, blocks=2))


def test_every_block_is_a_region_with_its_mode(deployment, tmp_path):
    said: list[str] = []
    fake = FakeGrafana()
    with serving(fake) as url:
        annotator = Annotator(GrafanaSettings(url=url, token=fake.token))
        run_experiment(
            RunFolder.create(tmp_path / "run", PLAN), Setup(deployment.url, annotate=annotator.annotate), said.append
        )
    written = fake.annotations
    assert [each["tags"] for each in written] == [[*names.ANNOTATION_EXPERIMENT, block.mode] for block in PLAN.blocks]
    assert [each["text"] for each in written[:3]] == [
        "kvpath ab demo: block 1/6, push, warm-up: 400 req/s, about 20 tokens in, 4 out",
        "kvpath ab demo: block 2/6, pull, warm-up: 400 req/s, about 20 tokens in, 4 out",
        "kvpath ab demo: block 3/6, push: 400 req/s, about 20 tokens in, 4 out",
    ]
    times = [(each["time"], each["timeEnd"]) for each in written]
    assert all(start <= end for start, end in times)
    assert all(end <= after for (_, end), (after, _) in itertools.pairwise(times))
    assert not any("annotation" in line for line in said)


def test_a_grafana_that_refuses_is_said_once_and_the_result_is_there(deployment, tmp_path):
    said: list[str] = []
    fake = FakeGrafana(denied=["POST /api/annotations"])
    with serving(fake) as url:
        annotator = Annotator(GrafanaSettings(url=url, token=fake.token))
        result = run_experiment(
            RunFolder.create(tmp_path / "run", PLAN), Setup(deployment.url, annotate=annotator.annotate), said.append
        )
    assert sum(arm.seen for arm in result.cells[0].arms) == 12
    notes = [line for line in said if "annotation" in line]
    assert len(notes) == 1
    assert notes[0].startswith("note: no annotation in Grafana: the token may not write an annotation: ")
    assert notes[0].endswith("; the experiment goes on without annotations")
    assert fake.annotations == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotations, "PATIENCE_S", 0.01)


@pytest.mark.usefixtures("impatient")
def test_a_grafana_that_dawdles_is_waited_for_once():
    asked, done = [], threading.Event()

    def dawdle(text, tags, start=None, end=None):
        asked.append(text)
        done.wait(10)

    said: list[str] = []
    marks = BlockAnnotations(dawdle, PLAN, said.append)
    for block in PLAN.blocks:
        marks.ended(block, 1.0, 2.0)
        marks.settle()
    assert len(asked) == 1
    assert said == [
        "note: no annotation in Grafana: it took longer than 0.01 s; the experiment goes on without annotations"
    ]
    done.set()


def test_without_a_grafana_nothing_is_said():
    said: list[str] = []
    marks = BlockAnnotations(None, PLAN, said.append)
    marks.ended(PLAN.blocks[0], 1.0, 2.0)
    marks.settle()
    assert said == []
