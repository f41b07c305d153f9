from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.router.bodies import CHAT_PATH, COMPLETIONS_PATH
from stack.router.conversations.history import history_of

texts = st.text(max_size=30)
roles = st.sampled_from(["system", "user", "assistant", "tool"])
messages = st.lists(st.builds(lambda role, text: {"role": role, "content": text}, roles, texts), min_size=1, max_size=5)


def after(history, answer):
    digest = history.answer_digest()
    digest.update(answer.encode("utf-8", "surrogatepass"))
    return history.with_answer(digest, len(answer))


def chat(turns, **more):
    return history_of(CHAT_PATH, {"messages": turns, **more})


def text(prompt, **more):
    return history_of(COMPLETIONS_PATH, {"prompt": prompt, **more})


@given(messages, texts, messages)
def test_the_next_turn_of_a_chat_goes_on_from_this_one(turns, answer, more):
    length, digest = after(chat(turns), answer)
    assert length == len(turns) + 1
    following = [*turns, {"role": "assistant", "content": answer}, *more]
    assert chat(following).digest(length) == digest
    assert chat(turns).digest(length) is None


@given(messages, texts, st.data())
def test_a_chat_that_was_edited_anywhere_does_not(turns, answer, data):
    length, digest = after(chat(turns), answer)
    following = [*turns, {"role": "assistant", "content": answer}, {"role": "user", "content": "go on"}]
    place = data.draw(st.integers(0, length - 1))
    edited = [dict(message) for message in following]
    edited[place]["content"] += data.draw(st.text(min_size=1, max_size=3))
    assert chat(edited).digest(length) != digest
    del following[place]
    shorter = chat(following).digest(length)
    assert shorter != digest or following[:length] == [*turns, {"role": "assistant", "content": answer}]


@given(texts, texts, texts)
def test_the_next_prompt_goes_on_from_prompt_and_answer(prompt, answer, more):
    length, digest = after(text(prompt), answer)
    assert length == len(prompt + answer)
    assert text(prompt + answer + more).digest(length) == digest
    assert text(prompt + answer).digest(length + 1) is None


@given(texts, texts, st.data())
def test_a_prompt_that_was_edited_anywhere_does_not(prompt, answer, data):
    whole = prompt + answer
    length, digest = after(text(prompt), answer)
    place = data.draw(st.integers(0, len(whole)))
    edited = whole[:place] + data.draw(st.text(min_size=1, max_size=3)) + whole[place:]
    assert (text(edited).digest(length) == digest) == (edited[:length] == whole)


@given(st.lists(st.integers(0, 200_000), min_size=1), st.lists(st.integers(0, 200_000)))
def test_a_prompt_of_tokens_is_covered_without_its_answer(tokens, more):
    length, digest = after(text(tokens), "whatever it said")
    assert length == len(tokens)
    assert text([*tokens, *more]).digest(length) == digest
    assert text([tokens[0] + 1, *tokens[1:]]).digest(length) != digest


@pytest.mark.parametrize(
    "shape",
    [
        {"model": "an adapter"},
        {"cache_salt": "another tenant"},
        {"tools": [{"type": "function"}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_what_shapes_the_cache_beside_the_text_is_part_of_it(shape):
    turns = [{"role": "user", "content": "hello"}]
    assert chat(turns).digest(1) != chat(turns, **shape).digest(1)
    assert text("hello").digest(5) != text("hello", **shape).digest(5)
    assert chat(turns, **shape).digest(1) == chat(turns, **shape, temperature=0, stream=True).digest(1)


@pytest.mark.parametrize(
    "spelled",
    [
        {"role": "assistant", "content": "hi", "refusal": None, "tool_calls": [], "annotations": None},
        {"content": "hi", "role": "assistant"},
        {"role": "assistant", "content": [{"type": "text", "text": "hi"}]},
    ],
)
def test_clients_spell_an_assistants_message_in_their_own_way(spelled):
    length, digest = after(chat([{"role": "user", "content": "hello"}]), "hi")
    assert chat([{"role": "user", "content": "hello"}, spelled]).digest(length) == digest


def test_tool_calls_of_earlier_turns_are_part_of_the_history():
    def turns(name):
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}
        return [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "42"},
        ]

    assert chat(turns("f")).digest(3) == chat(turns("f")).digest(3)
    assert chat(turns("f")).digest(3) != chat(turns("g")).digest(3)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT_PATH, {}),
        (CHAT_PATH, {"messages": []}),
        (CHAT_PATH, {"messages": "hello"}),
        (CHAT_PATH, {"messages": ["hello"]}),
        (CHAT_PATH, {"messages": [{"role": "user", "content": 7}]}),
        (CHAT_PATH, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
        (CHAT_PATH, {"messages": [{"role": "user", "content": "a"}], "continue_final_message": True}),
        (CHAT_PATH, {"messages": [{"role": "user", "content": "a"}], "echo": True}),
        (COMPLETIONS_PATH, {}),
        (COMPLETIONS_PATH, {"prompt": ["a"]}),
        (COMPLETIONS_PATH, {"prompt": []}),
        (COMPLETIONS_PATH, {"prompt": [1, True]}),
        (COMPLETIONS_PATH, {"prompt": "a", "suffix": "b"}),
    ],
)
def test_what_is_not_plain_text_is_not_followed(path, body):
    assert history_of(path, body) is None


def test_parts_do_not_run_together():
    assert chat([{"role": "user", "content": "ab"}, {"role": "user", "content": "c"}]).digest(2) != chat(
        [{"role": "user", "content": "a"}, {"role": "user", "content": "bc"}]
    ).digest(2)
    assert text("x", model="ab").digest(1) != text("bx", model="a").digest(1)
