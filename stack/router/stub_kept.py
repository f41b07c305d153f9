"""The kept service of a stub decode engine: what a real one keeps of finished requests in mode reuse."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from connector import names

KEPT_PATH = "/kept/"


@dataclass(slots=True)
class StubKept:
    """By the router's request id. ``tokens`` is what the next request will have; ``hold`` delays every answer."""

    engine_id: str
    tokens: int = 100
    expires_in_s: float = 480.0
    hold: asyncio.Event | None = None
    asked: list[str] = field(default_factory=list)
    _entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    _lives: int = 1

    def finished(self, params: object) -> None:
        """Keeps the blocks of a request that was answered whole, if its parameters are those of mode reuse."""
        keep = isinstance(params, dict) and params.get(names.PARAM_KEEP, True)
        if isinstance(params, dict) and keep and params.get(names.PARAM_MODE) == names.MODE_REUSE:
            request_id = params[names.PARAM_REQUEST_ID]
            self._entries[request_id] = {
                "params": self.params(request_id),
                "tokens": self.tokens,
                "expires_in_s": self.expires_in_s,
            }

    def params(self, request_id: str) -> dict[str, Any]:
        """Returns what P is to be told about a request."""
        return {
            "do_remote_prefill": False,
            "do_remote_decode": True,
            "remote_block_ids": [[4, 5, 6, 7]],
            "remote_engine_id": f"{self.engine_id}-life-{self._lives}",
            "remote_request_id": f"cmpl-{request_id}-0-d",
            "remote_host": "127.0.0.1",
            "remote_port": 5611,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": self.tokens,
            "remote_blocks_expiry_time": 1234.5,
            "kvpath_later_field": 32,
            names.PARAM_MODE: names.MODE_PULL,
            names.PARAM_TOKEN_MARKS: [[60, "ab" * 8], [self.tokens, "cd" * 8]],
        }

    async def answer(self, path: str) -> tuple[int, bytes]:
        """Returns status and body of ``GET /kept/<request id>``."""
        request_id = path.removeprefix(KEPT_PATH)
        self.asked.append(request_id)
        if self.hold is not None:
            await self.hold.wait()
        entry = self._entries.get(request_id)
        if entry is None:
            return 404, json.dumps({"error": {"message": f"nothing is kept of {request_id}"}}).encode()
        return 200, json.dumps(entry).encode()

    def free(self) -> None:
        """Frees everything; in a restart it is gone with the engine, and the next life has an id of its own."""
        self._entries.clear()
        self._lives += 1
