"""The engines: which are healthy, how much each has in hand, and the choice among them.

The choice is the least outstanding work. Work is in tokens: the estimated prompt of every leg in flight on the
engine, plus ``REQUEST_WORK`` a leg for what does not grow with the prompt (a decode slot, the steps it takes part
in). Among equals the one chosen longest ago wins, so that idle engines take turns. Everything here runs on the
event loop's thread; a choice and the reservation of its work happen without an await between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from connector import names
from stack.router.errors import NoEngineError
from stack.router.settings import DECODE, PREFILL, EngineSettings, Role

POLICY = "least_outstanding_work"
REQUEST_WORK = 64  # tokens


@dataclass(slots=True, eq=False)
class Engine:
    """One engine and what the router knows about it. ``trouble`` says why it is not healthy."""

    settings: EngineSettings
    healthy: bool = False
    trouble: str = "not probed yet"
    requests: int = 0
    work: int = 0
    last_chosen: int = 0
    missed_probes: int = 0
    recheck: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @property
    def engine_id(self) -> str:
        return self.settings.engine_id

    def begin(self, tokens: int) -> None:
        """Reserves the work of a leg; :meth:`end` gives it back."""
        self.requests += 1
        self.work += tokens + REQUEST_WORK

    def end(self, tokens: int) -> None:
        self.requests -= 1
        self.work -= tokens + REQUEST_WORK

    def seen_up(self) -> None:
        self.healthy, self.trouble = True, ""

    def seen_down(self, trouble: str) -> None:
        """Takes the engine out of the choice until a probe succeeds, and asks for that probe at once."""
        self.healthy, self.trouble = False, trouble
        self.recheck.set()

    def suspect(self) -> None:
        """Asks for a probe: a request failed in a way that may or may not be the engine's end."""
        self.recheck.set()

    def serves(self, role: Role, mode: str) -> bool:
        return self.settings.role == role and (mode == names.MODE_PLAIN or mode in self.settings.modes)


class EnginePool:
    """All engines of this router."""

    def __init__(self, engines: Iterable[EngineSettings]) -> None:
        self.engines = [Engine(settings) for settings in engines]
        self._choices = 0

    def candidates(self, role: Role, mode: str) -> list[Engine]:
        """Returns the healthy engines that can take this leg."""
        return [engine for engine in self.engines if engine.healthy and engine.serves(role, mode)]

    def choose(self, role: Role, mode: str, preferred: str | None = None) -> Engine:
        """Returns the candidate with the least outstanding work; raises ``NoEngineError`` when there is none.

        Among equals it is the engine with the id ``preferred``.
        """
        self.require(role, mode)
        chosen = min(
            self.candidates(role, mode),
            key=lambda engine: (engine.work, engine.engine_id != preferred, engine.last_chosen),
        )
        self._choices += 1
        chosen.last_chosen = self._choices
        return chosen

    def require(self, role: Role, mode: str) -> None:
        """Raises ``NoEngineError`` when no engine can take this leg."""
        lack = self.lack(role, mode)
        if lack is not None:
            raise NoEngineError(f"{lack}; retry when /ready answers 200")

    def regrets(self, chosen: Engine, tokens: int, mode: str) -> bool:
        """Tells whether a choice made now would not be ``chosen``, which still carries its own ``tokens``."""
        own = chosen.work - tokens - REQUEST_WORK
        return any(other.work < own for other in self.candidates(DECODE, mode) if other is not chosen)

    def lack(self, role: Role, mode: str) -> str | None:
        """Says why no engine can take this leg, or ``None`` when one can."""
        if self.candidates(role, mode):
            return None
        known = [f"{e.engine_id}: {e.trouble}" for e in self.engines if e.serves(role, mode)]
        return f"no healthy {role} engine for mode {mode} ({'; '.join(known) or 'none configured'})"

    def lacks(self, modes: Iterable[str]) -> list[str]:
        """Says what keeps ``modes`` from being served; empty when all of them can be."""
        found = []
        for mode in modes:
            roles: tuple[Role, ...] = (DECODE,) if mode == names.MODE_PLAIN else (PREFILL, DECODE)
            found += [lack for role in roles if (lack := self.lack(role, mode))]
        return found


def describe(candidates: Iterable[Engine]) -> list[str]:
    """Returns ``<engine>=<outstanding work>`` for every candidate, for the route span."""
    return [f"{engine.engine_id}={engine.work}" for engine in candidates]
