"""One NIXL agent with the engine's settings: registers the blocks, knows one peer, moves blocks and takes the time.

Everything is done as vLLM's NIXL worker does it: the same agent configuration, one descriptor table a side, prepared
once, transfers made from it by index with a completion message. Runs on one thread; times are monotonic nanoseconds.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from connector.clock import now
from connector.fewcores import progress_delay
from stack.probe.errors import ProbeError
from stack.probe.layout import descriptor_ids, descriptor_table
from stack.probe.memory import KvMemory
from stack.probe.plan import Plan

_WHEELS = ("nixl_cu13", "nixl_cu12", "nixl_rocm")
_IN_PROGRESS, _DONE = "PROC", "DONE"
_SPIN_NS = 2_000_000  # look without pause for this long, then at intervals of a two-hundredth of the time that passed
_LOOKS = 200


@dataclass(frozen=True, slots=True)
class Timing:
    """Transfers made and posted one after another, then awaited together.

    ``prepare_ns``: block ids → transfer handles. ``submit_ns``: the posting calls. ``total_ns``: first posting call →
    all seen to have ended. ``submitted``: descriptors after NIXL merged neighbours.
    """

    prepare_ns: int
    submit_ns: int
    total_ns: int
    submitted: int


class Agent:
    """A NIXL agent that owns ``memory``. Raises :class:`ProbeError` for whatever NIXL refuses."""

    def __init__(self, plan: Plan, memory: KvMemory) -> None:
        self._plan, self._memory = plan, memory
        self._agent = _make_agent(plan)
        ranges = [(base, plan.region_bytes, memory.device, "") for base in memory.bases]
        with _failing("NIXL cannot register the blocks"):
            self._registered = self._agent.get_reg_descs(ranges, memory.kind)
            self._agent.register_memory(self._registered, backends=[plan.backend])
        self._peer = ""
        self._local: Any = None
        self._remote: Any = None
        self._messages: set[bytes] = set()

    @property
    def metadata(self) -> bytes:
        with _failing(f"NIXL's backend {self._plan.backend} cannot talk to another agent"):
            return self._agent.get_agent_metadata()

    def meet(self, metadata: bytes, bases: Sequence[int], kind: str, device: int) -> dict[str, int]:
        """Adds the peer and prepares both descriptor tables; returns how long that took (ns)."""
        plan, memory = self._plan, self._memory
        start = now()
        with _failing("NIXL does not accept the peer's metadata; are both sides' NIXL versions the same?"):
            self._peer = self._agent.add_remote_agent(metadata)
        added = now()
        with _failing("NIXL cannot prepare the descriptors"):
            block_bytes = plan.shape.block_bytes
            mine = descriptor_table(memory.bases, plan.pool, block_bytes, memory.device)
            theirs = descriptor_table(bases, plan.pool, block_bytes, device)
            self._local = self._agent.prep_xfer_dlist("NIXL_INIT_AGENT", self._agent.get_xfer_descs(mine, memory.kind))
            self._remote = self._agent.prep_xfer_dlist(self._peer, self._agent.get_xfer_descs(theirs, kind))
        return {"add_peer_ns": added - start, "prepare_tables_ns": now() - added}

    def move(self, operation: str, local: Sequence[Any], remote: Sequence[Any], messages: Sequence[bytes]) -> Timing:
        """Moves blocks (ids, one array a transfer) and returns when all have ended."""
        pool, regions = self._plan.pool, self._plan.shape.layers
        handles: list[Any] = []
        try:
            with _failing(f"NIXL cannot {operation} the blocks"):
                start = now()
                for mine, theirs, message in zip(local, remote, messages, strict=True):
                    ids = descriptor_ids(mine, pool, regions), descriptor_ids(theirs, pool, regions)
                    handles.append(
                        self._agent.make_prepped_xfer(
                            operation, self._local, ids[0], self._remote, ids[1], notif_msg=message
                        )
                    )
                prepared = now()
                states = [self._agent.transfer(handle) for handle in handles]
                submitted = now()
                self._await(operation, handles, states, prepared)
                ended = now()
                descriptors = sum(self._agent.get_xfer_telemetry(handle).descCount for handle in handles)
            return Timing(prepared - start, submitted - prepared, ended - prepared, descriptors)
        finally:
            for handle in handles:
                self._agent.release_xfer_handle(handle)

    def await_messages(self, messages: Sequence[bytes]) -> None:
        """Returns when the peer's transfers have announced their end with all of these messages."""
        deadline = time.monotonic() + self._plan.timeout_s
        missing = set(messages)
        while True:
            for arrived in self._agent.get_new_notifs().values():
                self._messages.update(arrived)
            missing -= self._messages
            if not missing:
                self._messages.clear()
                return
            if time.monotonic() > deadline:
                raise ProbeError(f"the completion of a transfer was not announced within {self._plan.timeout_s:g} s")
            time.sleep(0.001)

    def close(self) -> None:
        """Lets go of the peer and the blocks."""
        with _failing("NIXL cannot let go of the blocks"):
            for prepared in (self._local, self._remote):
                if prepared is not None:
                    self._agent.release_dlist_handle(prepared)
            if self._peer:
                self._agent.remove_remote_agent(self._peer)
            self._agent.deregister_memory(self._registered)

    def _await(self, operation: str, handles: Sequence[Any], states: list[str], start: int) -> None:
        deadline = start + int(self._plan.timeout_s * 1e9)
        for index, handle in enumerate(handles):
            state = states[index]
            while state == _IN_PROGRESS:
                passed = now() - start
                time.sleep(0 if passed < _SPIN_NS else passed / 1e9 / _LOOKS)
                if now() > deadline:
                    raise ProbeError(f"a {operation} did not end within {self._plan.timeout_s:g} s; try fewer --tokens")
                state = self._agent.check_xfer_state(handle)
            if state != _DONE:
                raise ProbeError(f"a {operation} failed: NIXL reports state {state!r}")


def nixl_version() -> str | None:
    """Returns the version of the installed NIXL, ``None`` when there is none."""
    for package in ("nixl", *_WHEELS):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _make_agent(plan: Plan) -> Any:
    api = _nixl_api()
    if plan.backend == "UCX":
        config = api.nixl_agent_config(num_threads=plan.num_threads, capture_telemetry=True)
    else:  # vLLM leaves the number of threads of any other backend alone
        config = api.nixl_agent_config(backends=[plan.backend], capture_telemetry=True)
    refused = f"NIXL's backend {plan.backend} cannot be used here: a library or device that it needs is missing"
    with _failing(refused), _progress(api.nixl_agent, plan.progress_delay_us):
        agent = api.nixl_agent(str(uuid.uuid4()), config)
    if plan.backend not in agent.backends:
        plugins = ", ".join(agent.get_plugin_list())
        raise ProbeError(f"NIXL has no backend {plan.backend!r} here; there are {plugins}")
    return agent


def _progress(agent_class: Any, delay_us: int | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if delay_us is None else progress_delay(agent_class, delay_us)


def _nixl_api() -> Any:
    """Imports NIXL's Python API.

    The ``nixl`` package chooses among its wheels and may import PyTorch for it, which takes seconds; where only one
    wheel is installed there is nothing to choose.
    """
    wheels = [wheel for wheel in _WHEELS if importlib.util.find_spec(wheel) is not None]
    package = wheels[0] if len(wheels) == 1 else "nixl"
    try:
        return importlib.import_module(f"{package}._api")
    except ImportError as error:
        raise ProbeError(f"NIXL is not installed, or does not load here ({error}); try `pip install nixl`") from None


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    """Turns NIXL's exceptions, which have no common class, into one that says what failed."""
    try:
        yield
    except ProbeError:
        raise
    except Exception as error:
        raise ProbeError(f"{what}: {str(error) or type(error).__name__}") from error
