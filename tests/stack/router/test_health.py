from __future__ import annotations

import pytest

from stack.router.errors import DeadlineError, UnreachableError
from stack.router.health import MISSES_TO_CONDEMN, probe
from stack.router.pool import Engine
from stack.router.settings import EngineSettings


class Scripted:
    """An upstream that answers what it is told."""

    def __init__(self):
        self.answer = (200, b"")

    async def get(self, _engine, _path):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def engine():
    return Engine(EngineSettings(url="http://d:1", role="decode", engine_id="D"))


async def test_a_slow_engine_is_condemned_only_after_several_misses(engine):
    upstream = Scripted()
    await probe(upstream, engine)
    upstream.answer = DeadlineError("slow")
    for _ in range(MISSES_TO_CONDEMN - 1):
        await probe(upstream, engine)
        assert engine.healthy
    await probe(upstream, engine)
    assert not engine.healthy
    upstream.answer = (200, b"")
    await probe(upstream, engine)
    assert engine.healthy
    assert engine.missed_probes == 0


async def test_a_refused_connection_or_a_bad_status_condemns_at_once(engine):
    upstream = Scripted()
    for answer in (UnreachableError("refused"), (503, b"")):
        upstream.answer = (200, b"")
        await probe(upstream, engine)
        upstream.answer = answer
        await probe(upstream, engine)
        assert not engine.healthy
        assert engine.trouble
        assert not engine.recheck.is_set(), "a probe must not ask for another at once"
