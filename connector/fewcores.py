"""Makes engines wait instead of spin, for hosts with few cores (a laptop, a CI machine).

vLLM and NIXL spin where a GPU server has cores to spare. On two cores that is not merely wasteful: a thread that
spins with ``sched_yield`` is put behind everything else by the kernel and may not run again for seconds, so that
what one measures is the scheduler. Two loops matter:

* vLLM's message queue spins for 1 s after each message, then sleeps on a notification that can get lost, which it
  notices after 5 s at the earliest. Here it sleeps at once, and looks again after a millisecond.
* NIXL's Python API fixes the delay of its progress thread at 0, so that every agent spins. Here the thread waits for
  UCX's event descriptor for at most a millisecond: it wakes when data arrives, and often enough to make progress on
  connections, which take dozens of turns that no event announces.

Neither has a setting upstream, so both are reached from outside, and only when the engine's option
``kvpath_few_cores`` says so: the CPU launcher sets it, GPU deployments never do. A vLLM or NIXL that is built
differently keeps its own behaviour, with a warning.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger(__name__)

OPTION_FEW_CORES = "kvpath_few_cores"
PROGRESS_DELAY_US = 1_000
RECHECK_MS = 1
_QUEUE_MODULE = "vllm.distributed.device_communicators.shm_broadcast"


@contextlib.contextmanager
def few_cores(enabled: bool, agent_class: Any) -> Iterator[None]:
    """Applies both to this process; NIXL agents of ``agent_class`` must be made inside to be affected."""
    if not enabled:
        yield
        return
    sleep_at_once()
    with progress_delay(agent_class, PROGRESS_DELAY_US):
        yield


def sleep_at_once() -> None:
    """Readers of vLLM's message queue in this process, also those that exist already, stop spinning."""
    queue = importlib.import_module(_QUEUE_MODULE)
    if not hasattr(queue, "SpinCondition") or not hasattr(queue, "SHM_READER_RECHECK_INTERVAL_MS"):
        logger.warning("this vLLM's message queue is built differently; its processes may spin while they wait")
        return
    # A property of the class wins over the value that each instance was given.
    queue.SpinCondition.busy_loop_s = property(lambda self: 0.0, lambda self, value: None)
    setattr(queue, "SHM_READER_RECHECK_INTERVAL_MS", RECHECK_MS)  # noqa: B010 - mypy reads vLLM and knows no such name


@contextlib.contextmanager
def progress_delay(agent_class: Any, delay_us: int) -> Iterator[None]:
    """NIXL agents made inside let their progress thread sleep for up to ``delay_us`` microseconds."""
    bindings = agent_class.__init__.__globals__.get("nixlBind")
    original = getattr(bindings, "nixlAgentConfig", None)
    if original is None:
        logger.warning("this NIXL offers no progress delay; its progress threads will spin")
        yield
        return

    class DelayedConfig(original):  # type: ignore[misc, valid-type]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, delay_us if name == "pthrDelay" else value)

    bindings.nixlAgentConfig = DelayedConfig
    try:
        yield
    finally:
        bindings.nixlAgentConfig = original
