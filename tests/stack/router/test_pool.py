from __future__ import annotations

import pytest

from connector import names
from stack.router.errors import NoEngineError
from stack.router.pool import REQUEST_WORK, EnginePool, describe
from stack.router.settings import DECODE, PREFILL, EngineSettings


def engine(engine_id, role=DECODE, modes=(names.MODE_PUSH, names.MODE_PULL)):
    return EngineSettings(
        url=f"http://{engine_id.lower()}:1",
        role=role,
        engine_id=engine_id,
        modes=modes,
        side_channel_host="h",
        side_channel_port=5600,
    )


def pool_of(*engines):
    pool = EnginePool(engines)
    for each in pool.engines:
        each.seen_up()
    return pool


def test_the_least_outstanding_work_wins_and_equals_take_turns():
    pool = pool_of(engine("A"), engine("B"))
    a, b = pool.engines
    a.begin(1000)
    assert pool.choose(DECODE, names.MODE_PUSH) is b
    b.begin(10)
    b.begin(10)
    assert pool.choose(DECODE, names.MODE_PUSH) is b
    assert describe(pool.engines) == [f"A={1000 + REQUEST_WORK}", f"B={20 + 2 * REQUEST_WORK}"]
    a.end(1000)
    b.end(10)
    b.end(10)
    assert (a.work, a.requests, b.work, b.requests) == (0, 0, 0, 0)
    assert [pool.choose(DECODE, names.MODE_PUSH) for _ in range(3)] == [a, b, a]


def test_role_mode_and_health_limit_the_choice():
    pool = pool_of(engine("A", modes=(names.MODE_PULL,)), engine("B", modes=(names.MODE_PUSH,)), engine("P", PREFILL))
    a, b, p = pool.engines
    assert pool.candidates(DECODE, names.MODE_PULL) == [a]
    assert pool.candidates(DECODE, names.MODE_PLAIN) == [a, b]
    assert pool.candidates(PREFILL, names.MODE_PULL) == [p]
    b.seen_down("gone")
    assert b.recheck.is_set()
    with pytest.raises(NoEngineError, match="B: gone"):
        pool.choose(DECODE, names.MODE_PUSH)


def test_lacks_name_what_keeps_a_mode_from_being_served():
    pool = pool_of(engine("A"), engine("P", PREFILL))
    p = pool.engines[1]
    assert pool.lacks([names.MODE_PUSH, names.MODE_PLAIN]) == []
    p.seen_down("connection refused")
    assert pool.lacks([names.MODE_PLAIN]) == []
    (lack,) = pool.lacks([names.MODE_PUSH])
    assert "prefill" in lack
    assert "connection refused" in lack


def test_regret_compares_without_the_requests_own_work():
    pool = pool_of(engine("A"), engine("B"))
    a, b = pool.engines
    a.begin(500)
    assert not pool.regrets(a, 500, names.MODE_PUSH)  # A would be idle without it: a tie is no regret
    a.begin(5)
    assert pool.regrets(a, 500, names.MODE_PUSH)
    b.begin(50)
    assert not pool.regrets(a, 500, names.MODE_PUSH)
