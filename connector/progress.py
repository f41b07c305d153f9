"""Lets NIXL's progress thread sleep between events, for hosts with few cores.

NIXL's Python API fixes the thread's delay at 0: every agent then spins one core, idle or not. Two engines with two
agents each would spin four threads on a laptop's two cores, and every time measured there would be about that. With
a delay the thread waits for UCX's event descriptor for at most that long; it still wakes at once when data arrives.
Set by the option ``kvpath_nixl_progress_delay_us``; the CPU launcher sets it, GPU deployments leave NIXL alone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger(__name__)

OPTION_PROGRESS_DELAY = "kvpath_nixl_progress_delay_us"


@contextlib.contextmanager
def progress_delay(agent_class: Any, delay_us: int | None) -> Iterator[None]:
    """Agents of ``agent_class`` made inside get ``delay_us`` microseconds; ``None`` changes nothing.

    NIXL has no setting for it, so its configuration class is replaced for the duration. A NIXL that is built
    differently keeps its own behaviour, with one warning.
    """
    bindings = agent_class.__init__.__globals__.get("nixlBind") if delay_us is not None else None
    original = getattr(bindings, "nixlAgentConfig", None)
    if original is None:
        if delay_us is not None:
            logger.warning("this NIXL offers no progress delay; its progress threads will spin")
        yield
        return

    class DelayedConfig(original):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, delay_us if name == "pthrDelay" else value)

    bindings.nixlAgentConfig = DelayedConfig
    try:
        yield
    finally:
        bindings.nixlAgentConfig = original
