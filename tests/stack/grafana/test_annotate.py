from __future__ import annotations

import pytest

from connector import names
from stack.grafana.annotate import annotator_from_environment, split_text
from stack.grafana.settings import PREFIX


@pytest.fixture
def named(grafana, url, monkeypatch):
    monkeypatch.setenv(PREFIX + "URL", url)
    monkeypatch.setenv(PREFIX + "TOKEN", grafana.token)


def test_the_command_marks_this_moment(run, grafana):
    ran = run("annotate", "new firmware", "--tag", "network", "--tag", "kvpath")
    assert ran.status == 0
    assert ran.out == ["annotated: new firmware [kvpath, network]"]
    (written,) = grafana.annotations
    assert written.keys() == {"text", "tags", "time"}
    assert written["text"] == "new firmware"
    assert written["tags"] == ["kvpath", "network"]
    assert written["time"] > 1_700_000_000_000


def test_the_command_says_why_it_could_not(run, grafana):
    grafana.denied = ["POST /api/annotations"]
    ran = run("annotate", "new firmware")
    assert ran.status == 1
    assert ran.err == [
        "kvpath grafana: the token may not write an annotation: You'll need additional permissions. Permissions "
        "needed: POST /api/annotations"
    ]


@pytest.mark.usefixtures("named")
def test_a_stretch_of_time_is_a_region_in_milliseconds(grafana):
    annotator = annotator_from_environment()
    assert annotator.annotate("block 1", (*names.ANNOTATION_EXPERIMENT, "push"), 1700000000.25, 1700000060.5) is None
    assert grafana.annotations == [
        {
            "text": "block 1",
            "tags": ["kvpath", "experiment", "push"],
            "time": 1700000000250,
            "timeEnd": 1700000060500,
        }
    ]


def test_without_a_grafana_there_is_nothing_to_annotate(monkeypatch):
    assert annotator_from_environment() is None
    monkeypatch.setenv(PREFIX + "URL", "")
    monkeypatch.setenv(PREFIX + "TOKEN", "")
    assert annotator_from_environment() is None


@pytest.mark.parametrize(
    ("where", "token", "said"),
    [
        ("grafana:3000", "t", "no annotation in Grafana: KVPATH_GRAFANA_URL is 'grafana:3000', and must be"),
        ("{url}", "two words", "no annotation in Grafana: KVPATH_GRAFANA_TOKEN holds something that is no token"),
        ("{url}", "wrong", "no annotation in Grafana: Grafana at {url} does not accept the token (Invalid API key)"),
        ("http://127.0.0.1:9", "t", "no annotation in Grafana: no Grafana answers at http://127.0.0.1:9: "),
    ],
)
def test_whatever_is_wrong_is_one_line_and_no_exception(grafana, url, monkeypatch, where, token, said):
    monkeypatch.setenv(PREFIX + "URL", where.format(url=url))
    monkeypatch.setenv(PREFIX + "TOKEN", token)
    problem = annotator_from_environment().annotate("text", names.ANNOTATION_SPLIT)
    assert problem.startswith(said.format(url=url))
    assert "\n" not in problem
    assert token == "t" or token not in problem
    assert grafana.annotations == []


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({"push": 1.0}, {"push": 50.0, "pull": 50.0}, "split: push 50%, pull 50% (was push 100%)"),
        ({}, {"pull": 3.0, "push": 0.0}, "split: pull 100% (was the default mode)"),
        ({"push": 2.0, "pull": 1.0}, {}, "split: the default mode (was push 67%, pull 33%)"),
    ],
)
def test_a_change_of_the_split_in_words(before, after, text):
    assert split_text(before, after) == text
