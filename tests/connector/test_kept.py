from __future__ import annotations

import pytest

from connector.kept import Kept, KeptLedger


@pytest.fixture
def changes() -> list[int]:
    return []


@pytest.fixture
def ledger(changes: list[int]) -> KeptLedger:
    return KeptLedger(10, changes.append, clock=lambda: 100.0)


def kept(router_request: str = "rid", blocks: int = 3, expires_s: float = 120.0) -> Kept:
    return Kept(router_request, {"remote_request_id": router_request}, 90, blocks, expires_s)


def test_what_is_kept_is_found_by_the_routers_id_until_it_is_freed(ledger: KeptLedger, changes: list[int]) -> None:
    ledger.add("d-1", kept())
    assert ledger.find("rid") == (kept(), 20.0)
    assert ledger.find("d-1") is None
    ledger.forget(["d-1", "never-kept"])
    assert ledger.find("rid") is None
    assert changes == [3, 0]
    assert (len(ledger), ledger.blocks) == (0, 0)


def test_time_that_is_over_is_over_although_the_blocks_are_still_held(ledger: KeptLedger) -> None:
    ledger.add("d-1", kept(expires_s=100.0))
    assert ledger.find("rid") is None
    assert ledger.blocks == 3


def test_there_is_room_for_so_many_blocks(ledger: KeptLedger) -> None:
    ledger.add("d-1", kept("a", blocks=6))
    assert ledger.has_room(4)
    assert not ledger.has_room(5)


def test_two_requests_under_one_id_leave_the_later(ledger: KeptLedger) -> None:
    ledger.add("d-1", kept(blocks=1))
    ledger.add("d-2", kept(blocks=2))
    ledger.forget(["d-1"])
    assert ledger.find("rid") == (kept(blocks=2), 20.0)
    assert ledger.blocks == 2


def test_freeing_what_was_not_kept_changes_nothing(ledger: KeptLedger, changes: list[int]) -> None:
    ledger.forget(["a", "b"])
    assert changes == []
