"""``kvpath router`` whose choices of engines take as long as a test says. ``python slow_router.py --config FILE``."""

from __future__ import annotations

import sys
from typing import Any

from control import CHOICE_OF_D, CHOICE_OF_P, Control

from stack.__main__ import main
from stack.router.pool import EnginePool
from stack.router.settings import PREFILL

CONTROL = Control()
choose = EnginePool.choose


def choose_late(self: EnginePool, role: Any, *args: Any, **kwargs: Any) -> Any:
    CONTROL.hold(CHOICE_OF_P if role == PREFILL else CHOICE_OF_D)
    return choose(self, role, *args, **kwargs)


if __name__ == "__main__":
    EnginePool.choose = choose_late  # type: ignore[method-assign]
    sys.exit(main(["router", *sys.argv[1:]]))
