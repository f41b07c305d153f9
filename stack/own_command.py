"""How a reader can call ``kvpath`` from where this process was started, for commands that are printed to be copied."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

NAME = "kvpath"


def own_command(search: str | None = None) -> str:
    """Returns ``kvpath`` when the search path (``PATH`` unless given) leads to this installation's, else its path."""
    script = Path(sys.executable).parent / NAME
    if not script.is_file():  # run from a source tree that is not installed
        return f"{_shown(Path(sys.executable))} -m stack"
    found = shutil.which(NAME, path=search)
    return NAME if found is not None and Path(found).samefile(script) else _shown(script)


def _shown(path: Path) -> str:
    """As seen from the working directory when it lies below it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
