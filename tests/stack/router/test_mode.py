from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector import names
from stack.router.errors import BadRequestError
from stack.router.mode import ModePolicy, choose_by_weight

ALL = (names.MODE_PUSH, names.MODE_PULL, names.MODE_PLAIN)


def policy(split=None, *, allow=True, default=names.MODE_PUSH):
    return ModePolicy(default, split or {}, allow_header=allow, configured=ALL)


def test_header_when_allowed_then_split_then_default():
    only_pull = {names.MODE_PULL: 1}
    assert policy(only_pull).decide(names.MODE_PUSH, "k") == names.MODE_PUSH
    assert policy(only_pull, allow=False).decide(names.MODE_PUSH, "k") == names.MODE_PULL
    assert policy(only_pull).decide(None, "k") == names.MODE_PULL
    assert policy().decide(None, "k") == names.MODE_PUSH
    with pytest.raises(BadRequestError):
        policy().decide(names.MODE_REUSE, "k")


def test_a_measurements_own_request_is_known_by_a_reason_where_headers_are_allowed():
    assert [policy().uncounted(reason) for reason in names.UNCOUNTED_REASONS] == list(names.UNCOUNTED_REASONS)
    assert policy().uncounted(None) is None
    assert policy(allow=False).uncounted(names.UNCOUNTED_STEP) is None
    with pytest.raises(BadRequestError, match="no reason known here"):
        policy().uncounted("because")


@given(st.text(), st.dictionaries(st.sampled_from(ALL), st.floats(0, 1e6), min_size=1))
def test_a_conversation_keeps_its_mode_and_never_gets_one_without_weight(key, weights):
    chosen = choose_by_weight(weights, key)
    assert chosen == choose_by_weight(dict(reversed(weights.items())), key)
    assert (chosen is None) == (sum(weights.values()) == 0)
    assert chosen is None or weights[chosen] > 0


def test_the_split_is_met_in_proportion():
    weights = {names.MODE_PUSH: 30, names.MODE_PULL: 70}
    pushes = sum(choose_by_weight(weights, f"conversation {i}") == names.MODE_PUSH for i in range(4000))
    assert abs(pushes / 4000 - 0.3) < 0.03


def test_served_modes_follow_the_split_and_the_header():
    assert policy(allow=False).served() == (names.MODE_PUSH,)
    both = {names.MODE_PUSH: 0, names.MODE_PULL: 5}
    assert policy(both, allow=False).served() == (names.MODE_PULL,)
    assert set(policy(both).served()) == set(ALL)
