"""A dictionary of things that wait for the rest of their story, bounded in number and age.

Owned by the drain thread; ages are on the monotonic clock. What is thrown out is counted, as evicted unless said
otherwise, and handed to whoever can still say something about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Literal, TypeVar

from connector.ledger import Losses

K = TypeVar("K")
V = TypeVar("V")

DEFAULT_MAX_ENTRIES = 20_000
DEFAULT_MAX_AGE_NS = 900 * 1_000_000_000  # longer than any lease (480 s)


class Waiting(Generic[K, V]):
    """Insertion-ordered, so that the oldest entry is always first."""

    def __init__(
        self,
        losses: Losses,
        on_evicted: Callable[[V], None] | None = None,
        *,
        max_entries: int = DEFAULT_MAX_ENTRIES,
        max_age_ns: int = DEFAULT_MAX_AGE_NS,
        counted_as: Literal["evicted", "unmatched"] = "evicted",
    ) -> None:
        self._losses = losses
        self._on_evicted = on_evicted
        self._counted_as = counted_as
        self._max_entries = max_entries
        self._max_age_ns = max_age_ns
        self._entries: dict[K, tuple[int, V]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: K, at_ns: int, value: V) -> None:
        self._entries.pop(key, None)
        self._entries[key] = (at_ns, value)
        if len(self._entries) > self._max_entries:
            self._evict(next(iter(self._entries)))

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def pop(self, key: K) -> V | None:
        entry = self._entries.pop(key, None)
        return None if entry is None else entry[1]

    def expire(self, at_ns: int) -> None:
        """Evicts what has waited longer than the maximum age."""
        while self._entries:
            key, (since_ns, _) = next(iter(self._entries.items()))
            if at_ns - since_ns <= self._max_age_ns:
                return
            self._evict(key)

    def _evict(self, key: K) -> None:
        _, value = self._entries.pop(key)
        setattr(self._losses, self._counted_as, getattr(self._losses, self._counted_as) + 1)
        if self._on_evicted is not None:
            self._on_evicted(value)
