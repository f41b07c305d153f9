"""What is remembered of one turn, as a few bytes: the same in this process and in shared memory."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a turn's KV cache is kept and what it covers.

    ``request_id`` is the router's, under which D keeps the blocks; ``tokens`` as many as D has; ``length`` and
    ``digest`` (hex) cover the history as :mod:`~stack.router.conversations.history` has it; ``valid_s`` is how old
    the entry may get.
    """

    decode: str
    request_id: str
    tokens: int
    length: int
    digest: str
    valid_s: float

    def encode(self) -> bytes:
        return json.dumps(list(asdict(self).values()), separators=(",", ":")).encode()

    @classmethod
    def decode_from(cls, data: bytes) -> Entry:
        """Raises ``ValueError`` for anything but :meth:`encode`'s bytes."""
        match json.loads(data):
            case [str(decode), str(rid), int(tokens), int(length), str(digest), int() | float() as valid_s]:
                return cls(decode, rid, tokens, length, digest, float(valid_s))
        raise ValueError("not an entry of the reuse table")


def key_of(authorization: str | None, conversation_id: str) -> bytes:
    """Returns the key of one caller's conversation, 16 bytes; neither the caller's key nor the id is in it.

    The caller's part has a fixed length, so that no two pairs run together.
    """
    caller = hashlib.sha256((authorization or "").encode("utf-8", "surrogatepass")).digest()
    return hashlib.sha256(caller + conversation_id.encode("utf-8", "surrogatepass")).digest()[:16]
