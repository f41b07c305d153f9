"""Marks every block of an experiment in Grafana, beside the experiment, which works just as well without.

A block is marked once it has ended, by a thread of its own, while the run waits for the block's traces anyway, so that
nothing of it falls into measured time. A Grafana that refuses or dawdles is said once and not asked again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from connector import names
from stack.experiment.plan import Block, Plan

PATIENCE_S = 2.0  # before the next block, and once a run at most


class Annotate(Protocol):
    """``Annotator.annotate``: returns ``None``, or one line that says why there is no annotation. Does not raise."""

    def __call__(
        self, text: str, tags: Sequence[str], start: float | None = None, end: float | None = None
    ) -> str | None: ...


class BlockAnnotations:
    """Used by the thread that runs the experiment. ``annotate`` is ``None`` where there is no Grafana."""

    def __init__(self, annotate: Annotate | None, plan: Plan, say: Callable[[str], None]) -> None:
        self._annotate = annotate
        self._plan = plan
        self._say = say
        self._writing: threading.Thread | None = None
        self._problem: str | None = None

    def ended(self, block: Block, start: float, end: float) -> None:
        """Begins to mark a block that lasted from ``start`` to ``end``, in seconds since 1970."""
        if self._annotate is None:
            return
        tags = (*names.ANNOTATION_EXPERIMENT, block.mode)
        self._writing = threading.Thread(
            target=self._write, args=(self._annotate, self._text(block), tags, start, end), daemon=True
        )
        self._writing.start()

    def settle(self) -> None:
        """Ends what :meth:`ended` began: nothing of it goes on when this returns, or it is left to itself for good."""
        if self._writing is None:
            return
        self._writing.join(PATIENCE_S)
        problem = self._problem
        if self._writing.is_alive():
            problem = f"no annotation in Grafana: it took longer than {PATIENCE_S:g} s"
        self._writing = None
        if problem is not None:
            self._annotate = None
            self._say(f"note: {problem}; the experiment goes on without annotations")

    def _write(self, annotate: Annotate, text: str, tags: Sequence[str], start: float, end: float) -> None:
        self._problem = annotate(text, tags, start, end)

    def _text(self, block: Block) -> str:
        arm = self._plan.arms[block.arm] + (", warm-up" if block.warm_up else "")
        number = f"block {block.index + 1}/{len(self._plan.blocks)}"
        return f"kvpath ab {self._plan.preset}: {number}, {arm}: {self._plan.cells[block.cell]}"
