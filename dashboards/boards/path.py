"""The panel of one mode's critical path over time, which several dashboards show."""

from __future__ import annotations

from connector import names
from connector.stages import REUSE_STAGES, STAGE_NAMES, UNEXPLAINED
from dashboards.model import Panel, Query, View
from dashboards.queries import push_pull as ask


def stages_of(mode: str) -> tuple[str, ...]:
    """Stages that the mode can have, in the order of the path."""
    own = (stage for stage in STAGE_NAMES if mode == names.MODE_REUSE or stage not in REUSE_STAGES)
    return (*own, UNEXPLAINED)


def path_over_time(mode: str, width: int = 12) -> Panel:
    return Panel(
        f"What is the time to the first token made of, in {mode}?",
        "Mean seconds of each stage on the critical path; the areas add up to mean TTFT. The widest area is what "
        "to work on; a stage that grew is where to look. `unexplained` is what no stage covers.",
        "s",
        tuple(Query(ask.stage_over_time(mode, stage), stage, mode=mode) for stage in stages_of(mode)),
        View.STACK,
        width,
        height=10,
        stages=True,
    )
