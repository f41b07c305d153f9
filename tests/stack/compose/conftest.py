from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def read_yaml() -> Callable[[str], Any]:
    """Returns what a YAML file of the repository holds."""

    def read(path: str) -> Any:
        return yaml.safe_load((REPOSITORY / path).read_text())

    return read


@pytest.fixture(scope="session")
def services(read_yaml: Callable[[str], Any]) -> dict[str, Any]:
    found: dict[str, Any] = read_yaml("compose.yaml")["services"]
    return found
