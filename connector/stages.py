"""The stages of the critical path of TTFT, in request order: one definition for spans, metrics and reports.

A stage that a mode does not have is 0 there, so that modes can be put side by side. ``unexplained`` is not
listed: it is TTFT less the sum of these, and is always shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from connector import names


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the critical path.

    ``starts`` and ``ends`` say in words which instants bound it; ``engine_metric`` tells whether an engine
    process sees both of them and therefore exposes the stage on its own ``/metrics``.
    """

    name: str
    starts: str
    ends: str
    engine_metric: bool


STAGES: tuple[Stage, ...] = (
    Stage("route", "request in at the router", "the leg that P answers is sent", False),
    Stage("prefill_queue", "request received by P", "first scheduled on P; reuse: blocks allocated for its READ", True),
    Stage("reuse_handshake", "P's connection to D started", "connection ready", True),
    Stage("reuse_prepare", "P's READ of what D kept may start", "descriptor list handed to NIXL", True),
    Stage("reuse_submit", "descriptor list handed to NIXL", "post call returned", True),
    Stage("reuse_flight", "post call returned", "P's READ ended", True),
    Stage("reuse_notify", "P's READ ended", "first scheduled on P", False),
    Stage("prefill", "first scheduled on P", "prefill finished on P", True),
    Stage("handoff", "prefill finished on P", "pull: blocks allocated on D; push: registration matched", False),
    Stage("handshake", "connection to the peer started", "connection ready", True),
    Stage("prepare", "transfer may start", "descriptor list handed to NIXL", True),
    Stage("submit", "descriptor list handed to NIXL", "post call returned", True),
    Stage("flight", "post call returned", "transfer ended", True),
    Stage("notify", "transfer ended", "D knows that its KV is complete", False),
    Stage("first_step", "D knows that its KV is complete", "first token leaves D's engine", True),
    Stage("deliver", "first token leaves D's engine", "first token leaves the router", False),
)
STAGE_NAMES: tuple[str, ...] = tuple(stage.name for stage in STAGES)
REUSE_STAGES: tuple[str, ...] = tuple(name for name in STAGE_NAMES if name.startswith(names.REUSE_STAGE_PREFIX))
UNEXPLAINED = "unexplained"
