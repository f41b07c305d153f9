"""A change of the split stands in Grafana, whoever made it, and stands in the router whatever Grafana does."""

from __future__ import annotations

import asyncio
import queue
import threading

import pytest

from connector import names
from stack.grafana.annotate import Annotator
from stack.grafana.fake import FakeGrafana, serving
from stack.grafana.settings import GrafanaSettings
from stack.router.annotations import WAITING, SplitAnnotations

TOKEN = {"authorization": "Bearer secret"}


async def changed(router, split):
    return await router.client.put("/admin/split", json=split, headers=TOKEN)


async def outcome(router, which, count):
    async with asyncio.timeout(20):
        while await router.metric(f'kvpath_router_annotations_total{{outcome="{which}"}}') != count:
            pass  # the annotation is on its way; a scrape takes longer than it does


async def test_every_change_is_marked_and_the_answer_says_who_does_it(start, prefill, decode):
    fake = FakeGrafana()
    with serving(fake) as url:
        annotator = Annotator(GrafanaSettings(url=url, token=fake.token))
        async with start(prefill, decode, admin_token="secret", split={"push": 1}, annotator=annotator) as router:
            first = await changed(router, {"push": 50, "pull": 50})
            assert first.headers[names.HEADER_ANNOTATED]
            await changed(router, {"push": 50, "pull": 50})
            await changed(router, {})
            refused = await changed(router, {"pull": -1})
            assert names.HEADER_ANNOTATED not in refused.headers
            await outcome(router, "written", 2)
    assert [(each["text"], each["tags"]) for each in fake.annotations] == [
        ("split: push 50%, pull 50% (was push 100%)", list(names.ANNOTATION_SPLIT)),
        ("split: the default mode (was push 50%, pull 50%)", list(names.ANNOTATION_SPLIT)),
    ]
    assert all("timeEnd" not in each for each in fake.annotations)


async def test_a_grafana_that_refuses_is_counted_and_changes_nothing(start, prefill, decode, caplog):
    fake = FakeGrafana()
    with serving(fake) as url:
        annotator = Annotator(GrafanaSettings(url=url, token="glsa_wrong"))
        async with start(prefill, decode, admin_token="secret", split={"push": 1}, annotator=annotator) as router:
            assert (await changed(router, {"pull": 1})).json() == {"pull": 1}
            await outcome(router, "failed", 1)
            assert (await router.complete()).headers[names.HEADER_MODE] == names.MODE_PULL
    assert "does not accept the token" in caplog.text
    assert "glsa_wrong" not in caplog.text


async def test_without_a_grafana_the_caller_is_told_nothing(start, prefill, decode):
    async with start(prefill, decode, admin_token="secret", split={"push": 1}) as router:
        assert names.HEADER_ANNOTATED not in (await changed(router, {"pull": 1})).headers


class Dawdling:
    """An annotator that waits; ``begun`` says that it does."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.texts: list[str] = []

    def annotate(self, text, tags, start=None, end=None):
        self.begun.set()
        self.go.wait(10)
        self.texts.append(text)


@pytest.mark.parametrize("over", [0, 3])
def test_a_slow_grafana_holds_up_nobody_and_what_is_too_much_is_counted(over):
    annotator, outcomes = Dawdling(), queue.Queue()
    annotations = SplitAnnotations(annotator, outcomes.put)
    annotations.changed({}, {"push": 1})
    assert annotator.begun.wait(10)
    for _ in range(WAITING + over):
        annotations.changed({}, {"pull": 1})
    assert [outcomes.get_nowait() for _ in range(over)] == [False] * over
    annotator.go.set()
    assert [outcomes.get(timeout=10) for _ in range(WAITING + 1)] == [True] * (WAITING + 1)
    assert len(annotator.texts) == WAITING + 1
