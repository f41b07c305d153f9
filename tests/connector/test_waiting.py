from __future__ import annotations

from connector.ledger import Losses
from connector.waiting import Waiting


def test_pop_returns_what_was_put_once() -> None:
    losses = Losses()
    waiting: Waiting[str, int] = Waiting(losses)
    waiting.put("a", 0, 1)
    assert waiting.get("a") == 1
    assert waiting.pop("a") == 1
    assert waiting.pop("a") is None
    assert waiting.get("a") is None
    assert losses == Losses()


def test_the_oldest_makes_room_and_is_counted() -> None:
    losses = Losses()
    waiting: Waiting[str, int] = Waiting(losses, max_entries=2)
    for at_ns, key in enumerate("abc"):
        waiting.put(key, at_ns, at_ns)
    assert [waiting.get(key) for key in "abc"] == [None, 1, 2]
    assert losses.evicted == 1


def test_a_second_put_replaces_and_renews() -> None:
    losses = Losses()
    waiting: Waiting[str, int] = Waiting(losses, max_age_ns=10)
    waiting.put("a", 0, 1)
    waiting.put("b", 5, 2)
    waiting.put("a", 8, 3)
    waiting.expire(16)
    assert (waiting.get("a"), waiting.get("b"), len(waiting)) == (3, None, 1)
    assert losses.evicted == 1


def test_an_entry_of_exactly_the_maximum_age_stays() -> None:
    losses = Losses()
    waiting: Waiting[str, int] = Waiting(losses, max_age_ns=10)
    waiting.put("a", 0, 1)
    waiting.expire(10)
    assert len(waiting) == 1
    waiting.expire(11)
    assert len(waiting) == 0
    assert losses.evicted == 1


def test_what_is_evicted_is_handed_over_and_what_is_taken_is_not() -> None:
    evicted: list[int] = []
    waiting: Waiting[str, int] = Waiting(Losses(), evicted.append, max_entries=2, max_age_ns=10)
    for at_ns, key in enumerate("abc"):
        waiting.put(key, at_ns, at_ns)
    assert evicted == [0], "to make room"
    waiting.pop("b")
    waiting.expire(13)
    assert evicted == [0, 2], "of age"


def test_what_expires_can_count_as_unmatched() -> None:
    losses = Losses()
    waiting: Waiting[str, int] = Waiting(losses, max_age_ns=10, counted_as="unmatched")
    waiting.put("a", 0, 1)
    waiting.expire(11)
    assert (losses.unmatched, losses.evicted) == (1, 0)
