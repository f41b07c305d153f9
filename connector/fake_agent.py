"""NIXL agents in memory: the calls that vLLM makes of ``nixl_agent``, with completions and failures on demand.

Two agents that share a :class:`Network` are two processes on a fabric. Nothing moves by itself: a posted transfer
stays in progress until the test calls :meth:`FakeAgent.complete`, which also delivers its notification.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from connector.worker_story import agent_name


class FabricError(RuntimeError):
    """What a failing call of the agent raises."""


class Handle:
    """Opaque, as NIXL's own handles are."""


@dataclass(eq=False)
class PreparedList(Handle):
    agent: str
    blocks: Any


@dataclass(eq=False)
class TransferHandle(Handle):
    operation: str
    local_ids: Any
    remote_ids: Any
    remote_agent: str
    message: bytes
    state: str = "INIT"
    released: bool = False


@dataclass
class Telemetry:
    totalBytes: int  # noqa: N815 - NIXL's spelling
    descCount: int  # noqa: N815
    xferDuration: int = 1_000  # noqa: N815 - microseconds
    postDuration: int = 10  # noqa: N815


@dataclass
class Network:
    agents: dict[str, FakeAgent] = field(default_factory=dict)


class FakeAgent:
    """One agent. ``fail`` maps a method's name to the exception that its next call raises."""

    BYTES_PER_DESCRIPTOR = 1_000

    def __init__(self, name: str, network: Network | None = None) -> None:
        self.name = name
        self.network = network or Network()
        self.network.agents[name] = self
        self.fail: dict[str, Exception] = {}
        self.done_at_once = False
        self.calls: list[str] = []
        self.posted: list[TransferHandle] = []
        self._inbox: dict[str, list[bytes]] = {}

    def _called(self, method: str) -> None:
        self.calls.append(method)
        error = self.fail.pop(method, None)
        if error is not None:
            raise error

    # --- what vLLM calls --------------------------------------------------------------------------------------
    def get_agent_metadata(self) -> bytes:
        return self.name.encode()

    def add_remote_agent(self, metadata: bytes) -> bytes:
        self._called("add_remote_agent")
        return metadata  # NIXL 1.5 returns bytes here, and takes either everywhere

    def prep_xfer_dlist(self, agent: str | bytes, blocks: Any, mem_type: str | None = None) -> PreparedList:
        self._called("prep_xfer_dlist")
        return PreparedList(agent_name(agent), blocks)

    def make_prepped_xfer(
        self, operation: str, local: Any, local_ids: Any, remote: Any, remote_ids: Any, notif_msg: bytes = b""
    ) -> TransferHandle:
        self._called("make_prepped_xfer")
        return TransferHandle(operation, local_ids, remote_ids, remote.agent, notif_msg)

    def transfer(self, handle: TransferHandle) -> str:
        self._called("transfer")
        self.posted.append(handle)
        handle.state = "PROC"
        if self.done_at_once:
            self.complete(handle)
        return handle.state

    def check_xfer_state(self, handle: TransferHandle) -> str:
        self._called("check_xfer_state")
        return handle.state

    def get_xfer_telemetry(self, handle: TransferHandle) -> Telemetry:
        self._called("get_xfer_telemetry")
        return Telemetry(len(handle.local_ids) * self.BYTES_PER_DESCRIPTOR, len(handle.local_ids))

    def release_xfer_handle(self, handle: TransferHandle) -> None:
        self._called("release_xfer_handle")
        handle.released = True

    def send_notif(self, agent: str | bytes, notif_msg: bytes, backend: str | None = None) -> None:
        self._called("send_notif")
        self.deliver(agent_name(agent), notif_msg)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        self._called("get_new_notifs")
        arrived, self._inbox = self._inbox, {}
        return arrived

    # --- what a test calls ------------------------------------------------------------------------------------
    def deliver(self, agent: str, message: bytes) -> None:
        """Puts a notification into another agent's inbox."""
        self.network.agents[agent]._inbox.setdefault(self.name, []).append(message)

    def complete(self, handle: TransferHandle, state: str = "DONE") -> None:
        """Ends a posted transfer; the far side is notified when it succeeded."""
        handle.state = state
        if state == "DONE" and handle.message:
            self.deliver(handle.remote_agent, handle.message)
