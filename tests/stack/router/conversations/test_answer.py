from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.router.bodies import CHAT_PATH, COMPLETIONS_PATH
from stack.router.conversations.answer import AnswerText
from stack.router.conversations.history import history_of

DONE = b"data: [DONE]\n\n"
USER = {"role": "user", "content": "hello"}


def new(chat=True):
    if chat:
        return AnswerText(history_of(CHAT_PATH, {"messages": [USER]}), chat=True)
    return AnswerText(history_of(COMPLETIONS_PATH, {"prompt": "hello"}), chat=False)


def event(content, finish=None, *, chat=True, **more):
    part = {"delta": content} if chat else content
    return (
        b"data: " + json.dumps({"choices": [{"index": 0, **part, "finish_reason": finish, **more}]}).encode() + b"\n\n"
    )


def feed(answer, data, sizes=(7,)):
    position, dones = 0, []
    while position < len(data):
        size = sizes[position % len(sizes)]
        dones.append(answer.follow(data[position : position + size]))
        position += size
    return dones


@given(st.lists(st.text(), max_size=8), st.lists(st.integers(1, 60), min_size=1, max_size=5), st.booleans())
def test_the_text_is_followed_however_the_bytes_are_cut(pieces, sizes, chat):
    answer = new(chat)
    field = "content" if chat else "text"
    role = event({"role": "assistant", "content": ""}) if chat else b""
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\n'
    data = role + b"".join(event({field: piece}, chat=chat) for piece in pieces)
    data += event({field: "."}, "stop", chat=chat) + usage + DONE
    dones = feed(answer, data, sizes)
    assert dones.count(True) == 1
    assert answer.problem is None
    whole = "".join(pieces) + "."
    if chat:
        following = history_of(CHAT_PATH, {"messages": [USER, {"role": "assistant", "content": whole}, USER]})
    else:
        following = history_of(COMPLETIONS_PATH, {"prompt": f"hello{whole} and so on"})
    length, digest = answer.covered()
    assert following.digest(length) == digest


@given(st.text(), st.booleans())
def test_a_whole_answer_counts_as_a_streamed_one(said, chat):
    streamed, whole = new(chat), new(chat)
    feed(streamed, event({"content" if chat else "text": said}, "length", chat=chat) + DONE)
    content = {"message": {"role": "assistant", "content": said, "tool_calls": []}} if chat else {"text": said}
    body = {"choices": [{"index": 0, **content, "finish_reason": "length"}]}
    assert whole.whole(json.dumps(body).encode())
    assert whole.covered() == streamed.covered()


@pytest.mark.parametrize(
    "part",
    [
        {"reasoning": "hm"},
        {"reasoning_content": "hm"},
        {"tool_calls": [{"index": 0}]},
        {"refusal": "no"},
        {"content": [{"type": "text"}]},
    ],
)
def test_of_an_answer_that_is_not_plain_text_only_the_prompt_is_covered(part):
    answer = new()
    assert any(feed(answer, event({"content": "a"}) + event(part) + event({}, "tool_calls") + DONE))
    length, digest = answer.covered()
    assert (length, digest) == (1, history_of(CHAT_PATH, {"messages": [USER]}).digest(1))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (event({"content": "a"}) + DONE, "answer_unfinished"),
        (event({"content": "a"}, "abort") + DONE, "finish_reason"),
        (event({"content": "a"}) + event({"content": "b"}, "stop", index=1) + DONE, "several_choices"),
        (event({"content": "a"}, "stop") + b'data: {"error": {"message": "m"}}\n\n' + DONE, "answer_unreadable"),
        (b"data: nonsense\n\n" + event({"content": "a"}, "stop") + DONE, "answer_unreadable"),
        (b'data: {"choices": ["x"]}\n\n' + DONE, "several_choices"),
        (b'data: {"choices": [{"index": 0, "finish_reason": "stop"}]}\n\n' + DONE, "answer_unreadable"),
        (b"x" * (2 << 20), "answer_unreadable"),
    ],
)
def test_what_cannot_be_continued_says_why(data, problem):
    answer = new()
    assert not any(feed(answer, data, (65536,)))
    assert answer.problem == problem
    assert not answer.done


def test_without_its_end_a_stream_is_not_done():
    answer = new()
    assert not any(feed(answer, event({"content": "a"}, "stop")))
    assert not answer.done


@given(st.binary(max_size=200), st.binary(max_size=200), st.booleans())
def test_no_bytes_raise(first, second, chat):
    answer = new(chat)
    answer.follow(b"data:" + first)
    answer.follow(second + b"\n" + DONE)
    new(chat).whole(first)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["choices", "index", "delta", "content", "finish_reason", "text"]), inner)
    ),
    max_leaves=8,
)


@given(json_values, st.booleans())
def test_no_event_raises(value, chat):
    new(chat).follow(b"data: " + json.dumps(value).encode() + b"\n\n" + DONE)
    new(chat).whole(json.dumps({"choices": [value]}).encode())
