"""What to measure. The connecting side makes the plan; it crosses the control channel as JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from connector import names
from stack.probe.shape import BlockShape

PREFILL, DECODE = "prefill", "decode"  # the sides
# The prefill side WRITEs, the decode side READs: the data goes the same way.
WRITE, READ = names.OPERATION_WRITE, names.OPERATION_READ
CONTIGUOUS, FRAGMENTED = "contiguous", "fragmented"
OPERATIONS = (WRITE, READ)
LAYOUTS = (CONTIGUOUS, FRAGMENTED)

DEFAULT_BACKEND = "UCX"
DEFAULT_THREADS = 4  # vLLM's
DEFAULT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the result: ``transfers`` requests in flight at once."""

    operation: str
    layout: str
    transfers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``repetitions`` come after a first one that is reported apart. Raises ``ValueError`` for what cannot be."""

    shape: BlockShape
    tokens: int
    repetitions: int = 5
    concurrency: int = 1
    backend: str = DEFAULT_BACKEND
    num_threads: int = DEFAULT_THREADS
    progress_delay_us: int | None = None  # None: NIXL's progress thread spins, as on GPU hosts
    layouts: tuple[str, ...] = LAYOUTS
    seed: int = 0
    timeout_s: float = DEFAULT_TIMEOUT_S  # for each step

    def __post_init__(self) -> None:
        for name, least in (("tokens", 1), ("repetitions", 1), ("concurrency", 1), ("num_threads", 0), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if self.progress_delay_us is not None and self.progress_delay_us < 0:
            raise ValueError(f"progress_delay_us must not be negative, not {self.progress_delay_us!r}")
        if not self.layouts or not set(self.layouts) <= set(LAYOUTS):
            raise ValueError(f"layouts are {' and '.join(LAYOUTS)}, not {self.layouts!r}")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s must be positive, not {self.timeout_s!r}")

    @property
    def cases(self) -> tuple[Case, ...]:
        counts = (1,) if self.concurrency == 1 else (1, self.concurrency)
        return tuple(
            Case(operation, layout, count) for count in counts for layout in self.layouts for operation in OPERATIONS
        )

    @property
    def blocks(self) -> int:
        """Blocks of one transfer, in each layer."""
        return self.shape.blocks(self.tokens)

    @property
    def pool(self) -> int:
        """Blocks of each layer's region: block 0 is vLLM's null block; a fragmented pool is half free."""
        spread = 2 if FRAGMENTED in self.layouts else 1
        return 1 + spread * self.blocks * self.concurrency

    @property
    def region_bytes(self) -> int:
        return self.pool * self.shape.block_bytes

    @property
    def memory_bytes(self) -> int:
        """What each side allocates."""
        return self.shape.layers * self.region_bytes

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """Raises ``ValueError`` for anything that :meth:`to_json` cannot have written."""
        try:
            values = {field.name: data[field.name] for field in fields(cls)}
            values["shape"] = BlockShape(**values["shape"])
            values["layouts"] = tuple(values["layouts"])
            return cls(**values)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a plan: {type(error).__name__} {error}") from None
