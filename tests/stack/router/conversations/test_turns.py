"""From turn to turn, with D's word in the test's hands."""

from __future__ import annotations

import asyncio
import json

import pytest

from connector import names
from stack.router.bodies import COMPLETIONS_PATH
from stack.router.conversations import turns
from stack.router.conversations.history import history_of
from stack.router.conversations.process_memory import ProcessMemory
from stack.router.conversations.turns import Conversations, Limits, Turn
from stack.router.settings import EngineSettings
from stack.router.stub_kept import StubKept

D = EngineSettings(url="http://d:1", role="decode", engine_id="D0", modes=("pull", "reuse"), kept_url="http://d:2")
KEY = b"k" * 16
ANSWER = json.dumps({"choices": [{"index": 0, "text": " there", "finish_reason": "stop"}]}).encode()


class Word:
    """D's kept service: what it says, when ``may_answer`` is set."""

    def __init__(self):
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.status = 200
        self.tokens = 100
        self.expires_in_s = 480.0
        self.asked = []

    async def fetch(self, url, timeout_s):
        self.asked.append(url)
        await self.may_answer.wait()
        params = StubKept("D0", self.tokens).params(url.rsplit("/", 1)[1])
        said = {"params": params, "tokens": self.tokens, "expires_in_s": self.expires_in_s}
        return self.status, json.dumps(said).encode()


@pytest.fixture
def word():
    return Word()


@pytest.fixture
def not_kept():
    return []


@pytest.fixture
async def conversations(word, clock, not_kept):
    memory = ProcessMemory(10, 960.0, clock)
    made = Conversations(memory, [D], word.fetch, Limits(480.0, 5.0, 64, 5.0), clock, not_kept.append)
    yield made
    await made.stop()


def turn(prompt, key=KEY):
    return Turn.begin(key, history_of(COMPLETIONS_PATH, {"prompt": prompt}), chat=False)


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_turn_that_comes_before_ds_word_waits_for_it(conversations, word):
    word.may_answer.clear()
    conversations.ended(turn("hello"), "D0", "r1", ANSWER)
    looking = asyncio.create_task(conversations.look_up(turn("hello there, friend")))
    other = asyncio.create_task(conversations.look_up(turn("hello there", b"o" * 16)))
    await settle()
    assert not looking.done()
    assert (await other).outcome == names.REUSE_MISS  # of another conversation: it waits for nobody
    word.may_answer.set()
    found = await looking
    assert found.outcome == names.REUSE_HIT
    assert found.params["remote_request_id"] == "cmpl-r1-0-d"
    assert word.asked == ["http://d:2/kept/r1"] * 2


async def test_two_turns_that_wait_for_one_word_share_nothing(conversations, word):
    word.may_answer.clear()
    conversations.ended(turn("hello"), "D0", "r1", ANSWER)
    both = [asyncio.create_task(conversations.look_up(turn("hello there"))) for _ in range(2)]
    await settle()
    word.may_answer.set()
    assert sorted(found.outcome for found in await asyncio.gather(*both)) == [names.REUSE_HIT, names.REUSE_MISS]


async def test_a_word_that_does_not_come_makes_the_turn_miss(word, clock, not_kept):
    memory = ProcessMemory(10, 960.0, clock)
    made = Conversations(memory, [D], word.fetch, Limits(480.0, 5.0, 64, 0.01), clock, not_kept.append)
    word.may_answer.clear()
    made.ended(turn("hello"), "D0", "r1", ANSWER)
    assert (await made.look_up(turn("hello there"))).outcome == names.REUSE_MISS
    word.may_answer.set()
    await made.stop()
    assert len(memory) == 1  # for the turn after


@pytest.mark.parametrize(
    ("kept_s", "age_s", "outcome"),
    [
        (480, 474, names.REUSE_HIT),
        (480, 475, names.REUSE_EXPIRED),
        (480, 476, names.REUSE_EXPIRED),
        (1000, 476, names.REUSE_EXPIRED),
        (100, 94, names.REUSE_HIT),
        (100, 96, names.REUSE_EXPIRED),
        (4, 0, names.REUSE_EXPIRED),
    ],
)
async def test_nothing_is_used_that_is_about_to_expire(conversations, word, clock, kept_s, age_s, outcome):
    word.expires_in_s = kept_s
    conversations.ended(turn("hello"), "D0", "r1", ANSWER)
    await settle()
    clock.seconds += age_s
    found = await conversations.look_up(turn("hello there"))
    assert (found.outcome, found.tokens, found.age_s, found.decode) == (outcome, 100, age_s, "D0")
    assert (found.params is not None) == (outcome == names.REUSE_HIT)


async def test_d_has_the_last_word_on_its_time(conversations, word):
    conversations.ended(turn("hello"), "D0", "r1", ANSWER)
    await settle()
    word.expires_in_s = 5.0
    found = await conversations.look_up(turn("hello there"))
    assert (found.outcome, found.params) == (names.REUSE_EXPIRED, None)


async def test_time_that_ds_word_took_counts(conversations, word, clock):
    word.may_answer.clear()
    conversations.ended(turn("hello"), "D0", "r1", ANSWER)
    await settle()
    clock.seconds += 3
    word.may_answer.set()
    await settle()
    clock.seconds += 472
    assert (await conversations.look_up(turn("hello there"))).outcome == names.REUSE_EXPIRED


@pytest.mark.parametrize(("tokens", "outcome"), [(63, "too_short"), (64, "hit"), (65, "hit")])
async def test_from_64_tokens_on(conversations, word, tokens, outcome):
    word.tokens = tokens
    conversations.ended(turn("hello"), "D0", "r1", ANSWER)
    found = await conversations.look_up(turn("hello there"))
    assert (found.outcome, found.tokens) == (outcome, tokens)
    assert found.params["remote_num_tokens"] == (0 if outcome == "too_short" else tokens)


async def test_what_d_no_longer_has_is_gone_and_stays_edited_when_it_was(conversations, word):
    for prompt, outcome in (("hello there", names.REUSE_GONE), ("HELLO there", names.REUSE_EDITED)):
        word.status = 200
        conversations.ended(turn("hello"), "D0", "r1", ANSWER)
        await settle()
        word.status = 404
        found = await conversations.look_up(turn(prompt))
        assert (found.outcome, found.params) == (outcome, None)


async def test_an_engine_that_is_not_configured_here_is_gone(conversations, clock):
    entry_of_another_router = ProcessMemory(10, 960.0, clock)
    conversations._memory = entry_of_another_router
    conversations.ended(turn("hello"), "D0", "r1", ANSWER)
    await settle()
    conversations._kept_urls.clear()
    assert (await conversations.look_up(turn("hello there"))).outcome == names.REUSE_GONE


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (404, ANSWER, turns.NOT_KEPT),
        (500, ANSWER, turns.NOT_KEPT),
        (200, b"{", "answer_unreadable"),
        (200, b'{"choices": [{"index": 0, "text": "a"}]}', "answer_unfinished"),
    ],
)
async def test_what_is_not_remembered_says_why(conversations, word, not_kept, status, body, reason):
    word.status = status
    conversations.ended(turn("hello"), "D0", "r1", body)
    await settle()
    assert not_kept == [reason]
    assert (await conversations.look_up(turn("hello there"))).outcome == names.REUSE_MISS


async def test_a_fault_of_ours_is_logged_and_costs_one_turn(conversations, clock, caplog):
    class Broken(ProcessMemory):
        async def put(self, *_):
            raise RuntimeError("broken")

    conversations._memory = Broken(10, 960.0, clock)
    conversations.ended(turn("hello"), "D0", "r1", ANSWER)
    await settle()
    assert "a turn was not remembered" in caplog.text
    assert (await conversations.look_up(turn("hello there"))).outcome == names.REUSE_MISS


async def test_stopping_does_not_wait_for_ever(conversations, word, monkeypatch):
    monkeypatch.setattr(turns, "STOP_GRACE_S", 0.01)
    word.may_answer.clear()
    conversations.ended(turn("hello"), "D0", "r1", ANSWER)
    await settle()
    await conversations.stop()
    assert conversations._tasks == set()
