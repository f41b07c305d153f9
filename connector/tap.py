"""A delegating tap around vLLM's ``nixl_wrapper``: sees every NIXL call of a worker, changes none.

Calls arrive on the threads that upstream uses: WRITEs are prepared and posted by ``nixl-push-writer``, READs and
completion polls run on the engine's main thread, connections on the handshake executor. The tap stamps and records
facts; results and exceptions of the real call pass through unchanged. Telemetry of its own that fails is counted.
"""

from __future__ import annotations

from typing import Any, Protocol

from connector.clock import now
from connector.ledger import Ledger

HEARTBEAT_PREFIX = b"HB:"
IN_PROGRESS = "PROC"
TAPPED = (
    "make_prepped_xfer",
    "transfer",
    "check_xfer_state",
    "get_xfer_telemetry",
    "send_notif",
    "get_new_notifs",
    "add_remote_agent",
    "prep_xfer_dlist",
)


class TapStory(Protocol):
    """What understands the tap's facts; every method is called by the drain thread with ``at_ns`` (monotonic) first."""

    def prepared(
        self,
        at_ns: int,
        handle: int,
        end_ns: int,
        operation: str,
        local_ids: Any,
        remote_ids: Any,
        remote_list: int,
        message: bytes,
    ) -> None: ...
    def posted(self, at_ns: int, handle: int, end_ns: int, state: str) -> None: ...
    def ended(self, at_ns: int, handle: int, state: str, last_in_progress_ns: int) -> None: ...
    def measured(self, at_ns: int, handle: int, total_bytes: int) -> None: ...
    def failed(self, at_ns: int, call: str, handle: int | None, message: bytes | None, error: str) -> None: ...
    def sent(self, at_ns: int, end_ns: int, agent: str | bytes, message: bytes) -> None: ...
    def received(self, at_ns: int, notifs: dict[str | bytes, list[bytes]]) -> None: ...
    def agent_added(self, at_ns: int, end_ns: int, agent: str | bytes) -> None: ...
    def list_prepared(self, at_ns: int, end_ns: int, agent: str | bytes, remote_list: int) -> None: ...


class NixlTap:
    """Wraps one NIXL agent. Attributes that are not tapped come from the agent itself.

    The tapped calls live in a class of their own: Python looks up every attribute of an object whose class has
    ``__getattr__`` on a slow path, and a transfer in flight is polled all the time.
    """

    def __init__(self, agent: Any, ledger: Ledger, story: TapStory) -> None:
        self.calls = TappedCalls(agent, ledger, story)
        for name in TAPPED:
            setattr(self, name, getattr(self.calls, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.calls.agent, name)


class TappedCalls:
    """The calls that :class:`NixlTap` stamps, and the agent that they go to."""

    def __init__(self, agent: Any, ledger: Ledger, story: TapStory) -> None:
        self.agent = agent
        self._ledger = ledger
        self._story = story
        self.last_in_progress: dict[int, int] = {}

    def _record(self, *fact: Any) -> None:
        try:
            self._ledger.record(*fact)
        except Exception:
            self._ledger.error()

    def make_prepped_xfer(
        self, operation: str, local: Any, local_ids: Any, remote: Any, remote_ids: Any, *args: Any, **kwargs: Any
    ) -> Any:
        message = kwargs.get("notif_msg", args[0] if args else b"")
        start = now()
        try:
            handle = self.agent.make_prepped_xfer(operation, local, local_ids, remote, remote_ids, *args, **kwargs)
        except Exception as error:
            self._record(self._story.failed, start, "make_prepped_xfer", None, message, type(error).__name__)
            raise
        end = now()
        # The drain thread reads the id lists later: upstream never changes them once they are made.
        self._record(
            self._story.prepared, start, key_of(handle), end, operation, local_ids, remote_ids, key_of(remote), message
        )
        return handle

    def transfer(self, handle: Any, *args: Any, **kwargs: Any) -> Any:
        start = now()
        try:
            state = self.agent.transfer(handle, *args, **kwargs)
        except Exception as error:
            self._record(self._story.failed, start, "transfer", key_of(handle), None, type(error).__name__)
            raise
        self._record(self._story.posted, start, key_of(handle), now(), state)
        return state

    def check_xfer_state(self, handle: Any) -> Any:
        try:
            state = self.agent.check_xfer_state(handle)
        except Exception as error:
            self.last_in_progress.pop(key_of(handle), None)
            self._record(self._story.failed, now(), "check_xfer_state", key_of(handle), None, type(error).__name__)
            raise
        if state == IN_PROGRESS:  # every poll: key_of without its call
            self.last_in_progress[handle if isinstance(handle, int) else id(handle)] = now()
        else:
            last = self.last_in_progress.pop(key_of(handle), 0)
            self._record(self._story.ended, now(), key_of(handle), state, last)
        return state

    def get_xfer_telemetry(self, handle: Any) -> Any:
        try:
            telemetry = self.agent.get_xfer_telemetry(handle)
        except Exception as error:  # upstream takes the transfer for failed
            self._record(self._story.failed, now(), "get_xfer_telemetry", key_of(handle), None, type(error).__name__)
            raise
        self._record(self._story.measured, now(), key_of(handle), getattr(telemetry, "totalBytes", 0))
        return telemetry

    def send_notif(self, agent: str | bytes, *args: Any, **kwargs: Any) -> Any:
        message = kwargs.get("notif_msg", args[0] if args else b"")
        start = now()
        try:
            result = self.agent.send_notif(agent, *args, **kwargs)
        except Exception as error:
            self._record(self._story.failed, start, "send_notif", None, message, type(error).__name__)
            raise
        self._record(self._story.sent, start, now(), agent, message)
        return result

    def get_new_notifs(self, *args: Any, **kwargs: Any) -> Any:
        notifs = self.agent.get_new_notifs(*args, **kwargs) if args or kwargs else self.agent.get_new_notifs()
        if notifs:
            self._record(self._story.received, now(), notifs)
        return notifs

    def add_remote_agent(self, *args: Any, **kwargs: Any) -> Any:
        start = now()
        agent = self.agent.add_remote_agent(*args, **kwargs)
        self._record(self._story.agent_added, start, now(), agent)
        return agent

    def prep_xfer_dlist(self, agent: str | bytes, *args: Any, **kwargs: Any) -> Any:
        start = now()
        prepared = self.agent.prep_xfer_dlist(agent, *args, **kwargs)
        self._record(self._story.list_prepared, start, now(), agent, key_of(prepared))
        return prepared


def key_of(handle: Any) -> int:
    """A dictionary key for a NIXL handle, which is an ``int`` or an opaque object depending on the NIXL version."""
    return handle if isinstance(handle, int) else id(handle)
