"""What tests of every part share: the programs that :file:`.ci/tools` puts into :file:`.tools/bin`.

A test that takes the fixture :func:`tool` gets the marker ``tools``, so that ``make test-fast`` leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is slow, and that is no failure: neither of an example nor of drawing one.
settings.register_profile("kvpath", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvpath")

TOOLS = Path(__file__).parent.parent / ".tools" / "bin"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tool" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.tools)


@pytest.fixture(scope="session")
def tool() -> Callable[[str], Path]:
    """Returns the path of a program by its name; a missing one fails the test and says how to get it."""

    def find(name: str) -> Path:
        program = TOOLS / name
        if not program.exists():
            pytest.fail(f"{program} is missing; this gets it: .ci/tools {name}", pytrace=False)
        return program

    return find
