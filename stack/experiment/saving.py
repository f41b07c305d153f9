"""What mode reuse saved in prefill, and what it cost to take D's KV back. Pure.

Both come from the split of the difference of the means (:mod:`stack.experiment.split`). Beside them stands how the
prompts' tokens came to P in either arm: without these a saving of time could be anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from connector import names
from stack.experiment.counted import Arm
from stack.experiment.presets import PREFILL_CACHE_OFF, PREFILL_CACHE_ON
from stack.experiment.split import PREFILL, TAKING_BACK, Part, Split
from stack.experiment.traced import Moved


@dataclass(frozen=True, slots=True)
class MeanTokens:
    """Tokens a prompt, on average: read back from D, in P's own prefix cache, computed by P."""

    reused: float
    cached: float
    computed: float


@dataclass(frozen=True, slots=True)
class Saving:
    """``prefill`` and ``taking_back`` are reuse less pull: a saving is negative. ``lookups`` are of the reuse arm.

    ``read_back_ns``, ``_bytes``: medians of P's READs. ``prefill_cache``: "on", "off", or "" where nobody said.
    """

    prefill: Part | None
    taking_back: Part | None
    pull: MeanTokens | None
    reuse: MeanTokens | None
    lookups: Mapping[str, int]
    read_back_ns: float | None
    read_back_bytes: float | None
    prefill_cache: str

    @property
    def hits(self) -> int:
        return self.lookups.get(names.REUSE_HIT, 0)

    @property
    def contradiction(self) -> str:
        """Why what was said of P's prefix cache cannot be; "" when it can."""
        if self.pull is None or not self.prefill_cache:
            return ""
        if self.prefill_cache == PREFILL_CACHE_OFF and self.pull.cached:
            return f"P's prefix cache is said to be off, but held {self.pull.cached:.0f} tokens a prompt"
        if self.prefill_cache == PREFILL_CACHE_ON and not self.pull.cached:
            return "P's prefix cache is said to be on, but held nothing of any prompt"
        return ""


def saving_of(modes: tuple[str, str], arms: tuple[Arm, Arm], split: Split | None, prefill_cache: str) -> Saving | None:
    """``None`` unless one arm is reuse and the other pull."""
    if set(modes) != {names.MODE_PULL, names.MODE_REUSE}:
        return None
    pull, reuse = (arms[modes.index(mode)] for mode in (names.MODE_PULL, names.MODE_REUSE))
    paths = [c.path for c in reuse.requests() if c.path is not None]
    back = [path.moved_back for path in paths if path.moved_back is not None]
    lookups = Counter(path.lookup for path in paths if path.lookup)
    return Saving(
        prefill=_towards_reuse(split, PREFILL, modes),
        taking_back=_towards_reuse(split, TAKING_BACK, modes),
        pull=_tokens(pull),
        reuse=_tokens(reuse),
        lookups=dict(lookups.most_common()),
        read_back_ns=_median(back, "time_ns"),
        read_back_bytes=_median(back, "bytes"),
        prefill_cache=prefill_cache,
    )


def _towards_reuse(split: Split | None, name: str, modes: tuple[str, str]) -> Part | None:
    part = split.part(name) if split is not None else None
    return part if part is None or modes[0] == names.MODE_REUSE else part.reversed()


def _tokens(arm: Arm) -> MeanTokens | None:
    known = [c.path.tokens for c in arm.requests() if c.path is not None and c.path.tokens is not None]
    if not known:
        return None
    return MeanTokens(fmean(t.reused for t in known), fmean(t.cached for t in known), fmean(t.computed for t in known))


def _median(back: Sequence[Moved], name: str) -> float | None:
    return float(median(getattr(moved, name) for moved in back)) if back else None
