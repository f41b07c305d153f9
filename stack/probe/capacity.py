"""How much memory a probe may take. Pure but for the files of the kernel that it reads."""

from __future__ import annotations

from pathlib import Path

from stack.probe.errors import ProbeError

USABLE = 0.9  # of the free memory
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def require(needed: int, available: int | None, where: str) -> None:
    """Raises :class:`ProbeError` unless ``needed`` bytes fit; ``available`` is ``None`` where nobody tells."""
    if available is not None and needed > available * USABLE:
        raise ProbeError(
            f"the blocks need {needed / 2**20:,.0f} MiB of {where}, of which {available / 2**20:,.0f} MiB are free; "
            "try fewer --tokens or a lower --concurrency"
        )


def available_bytes() -> int | None:
    """Returns the host memory that is free for this process, within its control group."""
    found = [amount for amount in (_host_available(), _group_available()) if amount is not None]
    return min(found, default=None)


def _host_available() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _group_available() -> int | None:
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)
