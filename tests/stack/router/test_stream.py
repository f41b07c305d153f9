from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.router.stream import StreamScan, usage_of

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def chat(text, **more):
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}], **more}).encode() + b"\n\n"


def run(scan, data, sizes):
    """Feeds ``data`` in pieces; returns how much had been fed when the first token was seen."""
    position, seen = 0, None
    while position < len(data):
        size = sizes[position % len(sizes)]
        chunk = data[position : position + size]
        position += len(chunk)
        if scan.seeking and scan.first_token_in(chunk):
            seen = position
        scan.follow(chunk)
    return seen


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_the_first_token_is_found_however_the_bytes_are_cut(sizes):
    first = chat("hi")
    data = ROLE + first + chat("x") * 5 + DONE
    scan = StreamScan(chat=True)
    seen = run(scan, data, sizes)
    complete = len(ROLE) + len(first) - 1  # its line is whole one byte before the blank line
    assert complete <= seen < complete + max(sizes)
    assert scan.end().done
    assert not scan.end().failed


@given(st.lists(st.text(), min_size=1, max_size=20), st.lists(st.integers(1, 9000), min_size=1, max_size=5))
def test_text_is_never_taken_for_the_end_of_the_stream(texts, sizes):
    nasty = ["data: [DONE]", "\ndata: [DONE]\n\n", '\ndata: {"error": 1}', *texts]
    data = b"".join(chat(text) for text in nasty * 20)
    scan = StreamScan(chat=True)
    run(scan, data, sizes)
    assert not scan.end().done
    assert not scan.end().failed
    run(scan, DONE, sizes)
    assert scan.end().done


@given(st.lists(st.integers(1, 50), min_size=1, max_size=3))
def test_usage_and_errors_are_found_at_the_end(sizes):
    usage = {"prompt_tokens": 3, "completion_tokens": 9}
    tail = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    scan = StreamScan(chat=True)
    run(scan, chat("x", usage=None) * 300 + tail + DONE, sizes)
    assert scan.end().usage == usage
    failed = StreamScan(chat=True)
    run(failed, chat("x") * 300 + b'data: {"error": {"message": "m"}}\n\n' + DONE, sizes)
    assert failed.end().failed


@pytest.mark.parametrize(
    ("event", "is_token"),
    [
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
        ({"choices": [{"delta": {"reasoning": "hm"}}]}, True),
        ({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}, True),
        ({"choices": [{"delta": {}, "finish_reason": "stop"}]}, True),
        ({"choices": []}, False),
        ({"choices": ["x"]}, False),
        ({"choices": 1}, False),
        ([1], False),
    ],
)
def test_what_counts_as_the_first_token_of_a_chat(event, is_token):
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    assert StreamScan(chat=True).first_token_in(data) == is_token


def test_any_choice_is_a_token_of_a_completion_also_an_empty_one():
    assert StreamScan(chat=False).first_token_in(b'data: {"choices":[{"text":""}]}\n\n')
    assert not StreamScan(chat=False).first_token_in(b": comment\n\ndata: nonsense\n\n")


def test_a_stream_without_lines_is_not_kept_for_ever():
    scan = StreamScan(chat=True)
    assert any(scan.first_token_in(b"x" * 100_000) for _ in range(20))
    assert not scan.seeking


def test_usage_of_takes_objects_only():
    assert usage_of({"usage": {"a": 1}}) == {"a": 1}
    assert usage_of({"usage": None}) is None
    assert usage_of([]) is None
