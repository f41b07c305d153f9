"""Which mode serves a request: the client's header when allowed, else the split, else the default. And whether the
request is one that a measurement sends on its own account: a header says so, under the same condition.

The split is sticky: the same conversation gets the same mode in every router process as long as the weights stay,
because the choice is a hash of its id and not a draw. A request without a conversation is its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from connector import names
from stack.router.errors import BadRequestError


class ModePolicy:
    """Decides modes. :attr:`split` may be replaced while requests run; everything else is fixed."""

    def __init__(
        self, default: str, split: Mapping[str, float], *, allow_header: bool, configured: Iterable[str]
    ) -> None:
        self.split: Mapping[str, float] = dict(split)
        self._default = default
        self._allow_header = allow_header
        self._configured = tuple(configured)

    def decide(self, header: str | None, sticky_key: str) -> str:
        """Returns the mode; raises ``BadRequestError`` for an allowed header that names no configured mode."""
        if header is not None and self._allow_header:
            if header not in self._configured:
                known = ", ".join(self._configured)
                raise BadRequestError(f"{names.HEADER_MODE}: {header[:40]!r} is not served here; use one of {known}")
            return header
        return choose_by_weight(self.split, sticky_key) or self._default

    def uncounted(self, header: str | None) -> str | None:
        """Returns why no figure counts the request; raises ``BadRequestError`` for a reason that nobody knows."""
        if header is None or not self._allow_header:
            return None
        if header not in names.UNCOUNTED_REASONS:
            known = ", ".join(names.UNCOUNTED_REASONS)
            raise BadRequestError(
                f"{names.HEADER_UNCOUNTED}: {header[:40]!r} is no reason known here; use one of {known}"
            )
        return header

    def served(self) -> tuple[str, ...]:
        """Returns the modes that requests may run in at present."""
        by_weight = tuple(mode for mode, weight in self.split.items() if weight > 0)
        chosen = by_weight or (self._default,)
        return tuple(dict.fromkeys((*chosen, *(self._configured if self._allow_header else ()))))


def choose_by_weight(weights: Mapping[str, float], key: str) -> str | None:
    """Maps ``key`` to one of ``weights`` in proportion to the weights; ``None`` when there are none."""
    total = sum(weights.values())
    if total <= 0:
        return None
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    point = int.from_bytes(digest) / 2**64 * total
    positive = [(mode, weight) for mode, weight in sorted(weights.items()) if weight > 0]
    for mode, weight in positive:
        if point < weight:
            return mode
        point -= weight
    return positive[-1][0]
