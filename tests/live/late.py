"""Delays around the tap of a worker: outside it the engine's own calls come late, inside it the link is late.

Telemetry must not tell the two apart by knowing of them: it sees the calls and answers that it always sees.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from control import COMPLETION, FLIGHT, POST, REGISTRATION, Control

from connector.contract import REGISTRATION_PREFIX
from connector.tap import HEARTBEAT_PREFIX, IN_PROGRESS, key_of

FAILED = "ERR"


def put_around_tap(worker: Any, control: Control) -> None:
    """Puts :class:`LateLink` between the tap of ``worker`` and its agent, and :class:`LateCalls` before the tap."""
    tap = worker.nixl_wrapper
    tap.calls.agent = LateLink(tap.calls.agent, control)
    worker.nixl_wrapper = LateCalls(tap, control)


class LateCalls:
    """Holds the engine's thread up before it sends a registration or posts a transfer."""

    def __init__(self, tap: Any, control: Control) -> None:
        self._tap = tap
        self._control = control

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tap, name)

    def send_notif(self, agent: Any, *args: Any, **kwargs: Any) -> Any:
        message = kwargs.get("notif_msg", args[0] if args else b"")
        if message.startswith(REGISTRATION_PREFIX):
            self._control.hold(REGISTRATION)
        return self._tap.send_notif(agent, *args, **kwargs)

    def transfer(self, *args: Any, **kwargs: Any) -> Any:
        self._control.hold(POST)
        return self._tap.transfer(*args, **kwargs)


class LateLink:
    """An agent whose post returns at once while the transfer begins later, and which hands completions out late."""

    def __init__(self, agent: Any, control: Control) -> None:
        self._agent = agent
        self._control = control
        self._not_begun: dict[int, str] = {}  # what a poll finds until the agent has the transfer
        self._held_back: list[tuple[float, Any, bytes]] = []  # (due, agent, notification), the first due first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def transfer(self, handle: Any, *args: Any, **kwargs: Any) -> Any:
        seconds = self._control.delay_s(FLIGHT)
        if not seconds:
            return self._agent.transfer(handle, *args, **kwargs)
        self._not_begun[key_of(handle)] = IN_PROGRESS

        def begin() -> None:
            try:
                self._agent.transfer(handle, *args, **kwargs)
            except Exception:
                self._not_begun[key_of(handle)] = FAILED
                raise
            del self._not_begun[key_of(handle)]

        timer = threading.Timer(seconds, begin)
        timer.daemon = True
        timer.start()
        return IN_PROGRESS

    def check_xfer_state(self, handle: Any) -> Any:
        return self._not_begun.get(key_of(handle)) or self._agent.check_xfer_state(handle)

    def get_new_notifs(self, *args: Any, **kwargs: Any) -> Any:
        notifs = self._agent.get_new_notifs(*args, **kwargs)
        seconds = self._control.delay_s(COMPLETION)
        if not seconds and not self._held_back:
            return notifs
        at = time.monotonic()
        passed: dict[Any, list[bytes]] = {}
        for agent, messages in notifs.items():
            for message in messages:
                if message.startswith((REGISTRATION_PREFIX, HEARTBEAT_PREFIX)):
                    passed.setdefault(agent, []).append(message)
                else:
                    self._held_back.append((at + seconds, agent, message))
        while self._held_back and self._held_back[0][0] <= at:
            _, agent, message = self._held_back.pop(0)
            passed.setdefault(agent, []).append(message)
        return passed
