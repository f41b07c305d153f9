"""Where entries are kept between turns: in this process, or on a server that several router processes share."""

from __future__ import annotations

from typing import Protocol

from stack.router.conversations.entry import Entry


class Memory(Protocol):
    """Entries by key. Whoever takes one has it alone. ``errors`` counts failures, after which turns miss."""

    errors: int

    async def put(self, key: bytes, entry: Entry, age_s: float) -> None:
        """Stores what is already ``age_s`` seconds old, in place of an earlier entry."""
        ...

    async def take(self, key: bytes) -> tuple[Entry, float] | None:
        """Removes and returns an entry and its age in seconds."""
        ...

    async def stop(self) -> None:
        """Closes connections, if there are any."""
        ...
