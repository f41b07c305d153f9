from __future__ import annotations

from pathlib import Path

import pytest

from dashboards import generate


def test_the_committed_files_are_those_that_the_code_makes() -> None:
    """Also that making them is deterministic: every run has another seed of hashes."""
    changed = generate.differing(generate.generated())
    assert not changed, f"run `make dashboards` and commit: {changed}"


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    (tmp_path / "generated").mkdir()
    (tmp_path / "alerts").mkdir()
    monkeypatch.setattr(generate, "HERE", tmp_path)
    return tmp_path / "generated"


def test_a_file_that_was_edited_is_missing_or_is_no_longer_wanted_differs(elsewhere: Path) -> None:
    wanted = {elsewhere / "a.json": "a", elsewhere / "b.json": "b", elsewhere / "c.json": "c"}
    (elsewhere / "a.json").write_text("a")
    (elsewhere / "b.json").write_text("edited")
    (elsewhere / "old.json").write_text("of a dashboard that is gone")
    assert generate.differing(wanted) == [elsewhere / name for name in ("b.json", "c.json", "old.json")]


def test_writing_brings_the_files_up_to_date_and_removes_what_is_no_longer_wanted(elsewhere: Path) -> None:
    (elsewhere / "old.json").write_text("of a dashboard that is gone")
    generate.write()
    assert not generate.differing(generate.generated())
    assert set(elsewhere.parent.glob("*/*")) == set(generate.generated())
    assert not generate.write()
