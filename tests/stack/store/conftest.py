"""A store behind a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.store.settings import StoreSettings
from stack.store.testing import StoreClient, opened


@pytest.fixture
def settings(tmp_path: Path) -> StoreSettings:
    return StoreSettings(path=tmp_path / "traces.db", max_body_bytes=1024 * 1024)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreClient]:
    """A store that the read-only tests of a module have in common."""
    with opened(StoreSettings(path=tmp_path_factory.mktemp("store") / "traces.db")) as client:
        yield client


@pytest.fixture
def client(settings: StoreSettings) -> Iterator[StoreClient]:
    with opened(settings) as client:
        yield client
