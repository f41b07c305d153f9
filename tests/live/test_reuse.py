"""Mode reuse on real engines: D's KV goes back to P on a conversation's next turn, and the text stays what it was."""

from __future__ import annotations

import json
import secrets
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pydoc_data.topics import topics
from typing import Any

import httpx
import pytest
from conftest import LiveStack, eventually

from connector import names
from connector.token_marks import MERGING_TOKENS
from stack.analysis.complete import defects
from stack.analysis.critical_path import critical_path
from stack.analysis.source import TraceSource
from stack.analysis.trace import Span, Trace
from stack.engines.command_line import EngineSpec

# The gap between two turns stays well below the time that D keeps blocks here, less P's and the router's margins.
CONVERSATIONS, TURNS, AT_ONCE = 20, 4, 5
OPENING_WORDS, QUESTION_WORDS, OUTPUT_TOKENS = 62, 6, 4
WORDS = list(chain.from_iterable(textwrap.dedent(topics[name]).split() for name in sorted(topics)))


@dataclass(frozen=True)
class Said:
    text: str
    trace_id: str


def opening(number: int) -> str:
    return " ".join(WORDS[number * OPENING_WORDS : (number + 1) * OPENING_WORDS])


def question(number: int, turn: int) -> str:
    start = 10_000 + (number * TURNS + turn) * QUESTION_WORDS
    return "\n" + " ".join(WORDS[start : start + QUESTION_WORDS]) + ":"


def body_of(stack: LiveStack, prompt: str) -> dict[str, Any]:
    return {"model": stack.settings.model_name, "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0}


def headers_of(mode: str, conversation: str | None, key: str = "one") -> tuple[str, dict[str, str]]:
    """A new trace id, and the headers of a turn."""
    trace_id = secrets.token_hex(16)
    headers = {
        names.HEADER_MODE: mode,
        names.HEADER_TRACEPARENT: f"00-{trace_id}-{'1' * 16}-01",
        "Authorization": f"Bearer {key}",
    }
    return trace_id, headers | ({} if conversation is None else {names.HEADER_CONVERSATION: conversation})


def ask(
    stack: LiveStack,
    mode: str,
    prompt: str,
    conversation: str | None = None,
    *,
    streams: bool = False,
    key: str = "one",
) -> Said:
    """One greedy turn through the router."""
    trace_id, headers = headers_of(mode, conversation, key)
    url = f"{stack.settings.router_url}/v1/completions"
    body = body_of(stack, prompt) | {"stream": streams}
    answer = httpx.post(url, json=body, headers=headers, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    assert "remote_block_ids" not in answer.text, "D's positions are for the router alone"
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")] if streams else [answer.text]
    return Said("".join(json.loads(event)["choices"][0]["text"] for event in events), trace_id)


def plain(stack: LiveStack, prompt: str) -> str:
    """What one engine says without any transfer."""
    return ask(stack, names.MODE_PLAIN, prompt).text


def talk(stack: LiveStack, mode: str, number: int, conversation: str | None) -> list[Said]:
    """A conversation: every turn's prompt is all that was said so far. Every other turn is streamed."""
    history, answers = opening(number), []
    for turn in range(TURNS):
        history += question(number, turn)
        answers.append(ask(stack, mode, history, conversation, streams=(number + turn) % 2 == 1))
        history += answers[-1].text
    return answers


def at_once(stack: LiveStack, mode: str, prefix: str | None) -> list[list[Said]]:
    def one(number: int) -> list[Said]:
        return talk(stack, mode, number, None if prefix is None else f"{prefix}-{number}")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, range(CONVERSATIONS)))


def fetch(source: TraceSource, trace_id: str, *wanted: str) -> Trace:
    """The trace once it has the spans ``wanted``."""
    found: list[Trace] = []

    def arrived() -> bool:
        trace = source.fetch(trace_id)
        found[:] = [trace] if trace is not None else []
        return trace is not None and set(wanted) <= {each.name for each in trace.spans}

    eventually(arrived, 20)
    return found[0]


def span(trace: Trace, name: str) -> Span:
    (found,) = [each for each in trace.spans if each.name == name]
    return found


def outcome(trace: Trace) -> object:
    return span(trace, names.SPAN_REUSE_LOOKUP).attributes[names.ATTR_REUSE_OUTCOME]


@pytest.fixture(scope="module")
def source(stack: LiveStack):
    with TraceSource(stack.settings.store_url) as source:
        yield source


@pytest.fixture(scope="module")
def conversations(stack: LiveStack) -> list[list[Said]]:
    return at_once(stack, names.MODE_REUSE, f"talk-{secrets.token_hex(4)}")


def test_twenty_conversations_say_what_they_say_without_reuse(stack: LiveStack, conversations) -> None:
    expected = [[said.text for said in talk] for talk in at_once(stack, names.MODE_PLAIN, None)]
    assert [[said.text for said in talk] for talk in conversations] == expected
    assert len({text for talk in expected for text in talk}) > CONVERSATIONS, "texts that can be told apart"


def test_p_computes_less_by_what_d_had_kept(stack: LiveStack, source: TraceSource, conversations) -> None:
    for talk in conversations:
        known = 0
        for turn, said in enumerate(talk):
            trace = fetch(source, said.trace_id, names.SPAN_REUSE_LOOKUP, names.SPAN_PREFILL_COMPUTE)
            assert outcome(trace) == (names.REUSE_HIT if turn else names.REUSE_MISS)
            attributes = span(trace, names.SPAN_PREFILL_COMPUTE).attributes
            prompt, cached, taken = (
                attributes[key]
                for key in (names.ATTR_PROMPT_TOKENS, names.ATTR_CACHED_TOKENS, names.ATTR_EXTERNAL_TOKENS)
            )
            assert isinstance(prompt, int)
            assert cached == taken, "these engines have no prefix cache"
            assert isinstance(taken, int)
            # All of the prompt before but what its end became when more text followed; and of the answer what is
            # the same tokens again.
            assert taken >= known - MERGING_TOKENS
            known = prompt


def test_a_turn_that_reuses_has_a_whole_trace_that_adds_up(
    stack: LiveStack, source: TraceSource, conversations
) -> None:
    for said in conversations[0][1:]:
        trace = stack.trace(said.trace_id)
        assert [str(defect) for defect in defects(trace, engine_spans=True)] == []
        path = critical_path(trace)
        assert path.mode == names.MODE_REUSE
        assert sum(path.stages.values()) + path.unexplained_ns == path.ttft_ns
        assert path.anomalies == ()
        assert path.stages["reuse_prepare"] > 0
        assert path.stages["reuse_submit"] > 0
        readers = [each.resource.service_name for each in trace.spans if each.name == names.SPAN_READ]
        assert sorted(readers) == [names.SERVICE_DECODE, names.SERVICE_PREFILL]


def test_what_nobody_asks_for_is_freed_in_time(stack: LiveStack, source: TraceSource, conversations) -> None:
    """D is left alone meanwhile: it frees blocks, and says so, without another request."""
    prompt = opening(30) + question(30, 0)
    assert eventually(lambda: decode_usage(stack) == 0, stack.settings.kept_ttl_s + 10.0)
    never_continued = ask(stack, names.MODE_REUSE, prompt, f"left-{secrets.token_hex(4)}")
    _, headers = headers_of(names.MODE_REUSE, f"gone-{secrets.token_hex(4)}")
    url, body = (
        f"{stack.settings.router_url}/v1/completions",
        body_of(stack, prompt) | {"stream": True, "max_tokens": 64},
    )
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60, trust_env=False) as answer:
        next(answer.iter_lines())  # and the client leaves
    eventually(lambda: stack.metric(stack.decode, "vllm:num_requests_running") == 0, 10)
    assert stack.metric(stack.decode, "kvpath_blocks_pinned") > 0
    assert decode_usage(stack) > 0
    left = time.monotonic()
    eventually(lambda: decode_usage(stack) == 0, stack.settings.kept_ttl_s + 5.0)
    assert time.monotonic() - left > stack.settings.kept_ttl_s / 2
    eventually(lambda: stack.metric(stack.decode, "kvpath_blocks_pinned") == 0, 2)
    eventually(lambda: held_by_d(source, never_continued) != [], 10)
    (held,) = held_by_d(source, never_continued)
    assert held.attributes[names.ATTR_RELEASE_REASON] == names.RELEASE_LEASE_EXPIRED
    assert not held.failed, "that nobody came back is no failure"


def decode_usage(stack: LiveStack) -> float:
    return stack.metric(stack.decode, "vllm:kv_cache_usage_perc")


def held_by_d(source: TraceSource, said: Said) -> list[Span]:
    """What D says of the blocks that it kept of a turn; it says so when they are free."""
    trace = source.fetch(said.trace_id)
    held = [each for each in trace.spans if each.name == names.SPAN_BLOCKS_HELD] if trace else []
    return [each for each in held if each.resource.service_name == names.SERVICE_DECODE]


def test_two_turns_at_once_and_another_caller_take_nothing_twice(stack: LiveStack, source: TraceSource) -> None:
    conversation, prompt = f"twice-{secrets.token_hex(4)}", opening(31) + question(31, 0)
    following = prompt + ask(stack, names.MODE_REUSE, prompt, conversation).text + question(31, 1)
    stranger = ask(stack, names.MODE_REUSE, following, conversation, key="two")
    start = threading.Barrier(2)

    def one(_: int) -> Said:
        start.wait(10)
        return ask(stack, names.MODE_REUSE, following, conversation)

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(one, range(2)))
    assert {said.text for said in (stranger, *both)} == {plain(stack, following)}
    assert outcome(fetch(source, stranger.trace_id, names.SPAN_REUSE_LOOKUP)) == names.REUSE_MISS
    outcomes = [outcome(fetch(source, said.trace_id, names.SPAN_REUSE_LOOKUP)) for said in both]
    assert sorted(map(str, outcomes)) == [names.REUSE_HIT, names.REUSE_MISS]


def test_an_edited_history_is_computed_and_d_frees_the_old_one_at_once(stack: LiveStack, source: TraceSource) -> None:
    conversation, prompt = f"edited-{secrets.token_hex(4)}", opening(32) + question(32, 0)
    first = ask(stack, names.MODE_REUSE, prompt, conversation)
    edited = prompt.replace(WORDS[32 * OPENING_WORDS + 30], "nevertheless") + first.text + question(32, 1)
    assert edited != prompt + first.text + question(32, 1)
    second = ask(stack, names.MODE_REUSE, edited, conversation)
    assert second.text == plain(stack, edited)
    assert outcome(fetch(source, second.trace_id, names.SPAN_REUSE_LOOKUP)) == names.REUSE_EDITED
    eventually(lambda: held_by_d(source, first) != [], 5)
    (held,) = held_by_d(source, first)
    assert held.attributes[names.ATTR_RELEASE_REASON] == names.RELEASE_DONE


# --- what the router would not do: the engines are asked directly ------------------------------------------------


def leg(stack: LiveStack, engine: EngineSpec, request_id: str, prompt: str, params: dict[str, Any]) -> dict[str, Any]:
    body = body_of(stack, prompt) | {"kv_transfer_params": params}
    if engine is stack.prefill:
        body["max_tokens"] = 1
    headers = {names.HEADER_REQUEST_ID: request_id}
    answer = httpx.post(f"{engine.url}/v1/completions", json=body, headers=headers, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    answered: dict[str, Any] = answer.json()
    return answered


def turn(stack: LiveStack, prompt: str, kept: dict[str, Any] | None = None) -> tuple[Said, str]:
    """A turn as the router would run it, with whatever ``kept`` offers to P; also its request id."""
    request_id, trace_id = f"direct-{secrets.token_hex(4)}x", secrets.token_hex(16)
    own = {names.PARAM_MODE: names.MODE_REUSE, names.PARAM_REQUEST_ID: request_id}
    traceparents = [{names.PARAM_TRACEPARENT: f"00-{trace_id}-{digit * 16}-01"} for digit in "12"]
    asked = {**(kept or {}), "do_remote_decode": True, "do_remote_prefill": False, **own, **traceparents[0]}
    transfer = leg(stack, stack.prefill, request_id, prompt, asked)["kv_transfer_params"]
    answered = leg(stack, stack.decode, request_id, prompt, {**transfer, **own, **traceparents[1]})
    assert not answered.get("kv_transfer_params")
    return Said(answered["choices"][0]["text"], trace_id), request_id


def kept_of(stack: LiveStack, request_id: str) -> dict[str, Any]:
    answer = httpx.get(f"{stack.decode.kept_url}/kept/{request_id}", trust_env=False)
    assert answer.status_code == 200, answer.text
    params: dict[str, Any] = answer.json()["params"]
    return params


def on_p(source: TraceSource, said: Said) -> tuple[object, object]:
    """P's own view of what it was offered: outcome, and tokens that were the prompt's own."""
    attributes = span(fetch(source, said.trace_id, names.SPAN_PREFILL_QUEUE), names.SPAN_PREFILL_QUEUE).attributes
    return attributes.get(names.ATTR_REUSE_OUTCOME), attributes.get(names.ATTR_REUSE_MATCHED_TOKENS)


def test_p_takes_only_what_it_can_prove_and_only_once(stack: LiveStack, source: TraceSource) -> None:
    prompt = opening(33) + question(33, 0)
    first, request_id = turn(stack, prompt)
    kept = kept_of(stack, request_id)
    *_, (prompt_tokens, _), (all_tokens, _) = kept[names.PARAM_TOKEN_MARKS]
    another = opening(34) + question(34, 0)
    rewritten = prompt + " and an answer that was never given" + question(33, 1)
    broken = {**kept, "remote_block_ids": [["x"]]}
    for asked, offered, expected in (
        (another, kept, (names.REUSE_EDITED, 0)),
        (another, broken, (None, None)),
        (rewritten, kept_of(stack, turn(stack, prompt)[1]), (names.REUSE_HIT, prompt_tokens)),
    ):
        said, _ = turn(stack, asked, offered)
        assert said.text == plain(stack, asked)
        assert on_p(source, said) == expected
    following = prompt + first.text + question(33, 1)
    fresh = kept_of(stack, turn(stack, prompt)[1])
    for expected in ((names.REUSE_HIT, all_tokens), (names.REUSE_GONE, 0)):
        said, _ = turn(stack, following, fresh)
        assert said.text == plain(stack, following)
        assert on_p(source, said) == expected
    gone = httpx.get(f"{stack.decode.kept_url}/kept/{request_id}", trust_env=False)
    assert gone.status_code == 404, "P told D, which has freed the blocks"
