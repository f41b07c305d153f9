from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.router.conversations.entry import Entry, key_of

ENTRY = Entry("D0", "ab" * 16, 100, 7, "cd" * 16, 475.0)


def test_an_entry_survives_its_bytes():
    assert Entry.decode_from(ENTRY.encode()) == ENTRY


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'["D0","r","100",7,"d",1]', ENTRY.encode()[:-5]])
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError):  # noqa: PT011 - JSON's own is one
        Entry.decode_from(data)


callers = st.none() | st.text(max_size=10)
pairs = st.tuples(callers, st.text(max_size=10))


@given(pairs, pairs)
def test_a_key_belongs_to_one_caller_and_one_conversation(first, second):
    same = (first[0] or "", first[1]) == (second[0] or "", second[1])
    assert (key_of(*first) == key_of(*second)) == same


def test_caller_and_conversation_do_not_run_together():
    assert key_of("Bearer a", "bc") != key_of("Bearer ab", "c")
    assert b"Bearer" not in key_of("Bearer a", "bc")
