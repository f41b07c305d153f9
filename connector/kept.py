"""D's kept ledger: finished requests whose blocks D keeps, so that P may read them for the conversation's next turn.

D is the authority on what can be reused: an entry appears when a request finishes and vanishes when D frees its blocks
(P has them, or their time is over). The engine core thread adds and removes, the kept service's threads look up. Times
are seconds of this process's ``perf_counter``, the clock that upstream stamps the expiry with.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Kept:
    """Blocks of one request. ``params`` is what P needs in order to read them; ``tokens`` are known to be in them."""

    router_request: str
    params: Mapping[str, Any]
    tokens: int
    blocks: int
    expires_s: float


class KeptLedger:
    """What D keeps, by its own request id and by the router's; at most ``capacity`` blocks."""

    def __init__(
        self,
        capacity: int,
        changed: Callable[[int], None] = lambda blocks: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``changed`` is told how many blocks are kept, whenever that changes."""
        self.capacity = capacity
        self._changed = changed
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, Kept] = {}
        self._by_router_request: dict[str, str] = {}
        self.blocks = 0

    def __len__(self) -> int:
        return len(self._kept)

    def has_room(self, blocks: int) -> bool:
        return self.blocks + blocks <= self.capacity

    def add(self, request: str, kept: Kept) -> None:
        with self._lock:
            self._kept[request] = kept
            self._by_router_request[kept.router_request] = request
            self.blocks += kept.blocks
        self._changed(self.blocks)

    def forget(self, requests: Iterable[str]) -> None:
        """D has freed the blocks of ``requests``; those that it did not keep are ignored."""
        before = self.blocks
        with self._lock:
            for request in requests:
                kept = self._kept.pop(request, None)
                if kept is None:
                    continue
                self.blocks -= kept.blocks
                if self._by_router_request.get(kept.router_request) == request:
                    del self._by_router_request[kept.router_request]
        if self.blocks != before:
            self._changed(self.blocks)

    def find(self, router_request: str) -> tuple[Kept, float] | None:
        """Returns what is kept of the router's request and for how many seconds more; ``None`` when nothing is."""
        with self._lock:
            kept = self._kept.get(self._by_router_request.get(router_request, ""))
        if kept is None:
            return None
        left_s = kept.expires_s - self._clock()
        return (kept, left_s) if left_s > 0 else None
