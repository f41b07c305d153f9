"""Writes, or compares, the files that are made from code: the dashboards' JSON and the alert rules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dashboards.alerts import GROUPS, to_yaml
from dashboards.boards import BOARDS
from dashboards.grafana import to_json

HERE = Path(__file__).parent


def generated() -> Mapping[Path, str]:
    """Returns the text of every generated file."""
    dashboards = {HERE / "generated" / f"{board.name}.json": to_json(board) for board in BOARDS}
    return {**dashboards, HERE / "alerts" / "kvpath.yaml": to_yaml(GROUPS)}


def write() -> list[Path]:
    """Brings the files up to date and returns those that were not; files of dashboards that are gone are removed."""
    wanted = generated()
    changed = differing(wanted)
    for path in changed:
        if path in wanted:
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return changed


def differing(wanted: Mapping[Path, str]) -> list[Path]:
    """Returns the files that are missing, not as they should be, or no longer wanted."""
    stale = {*(HERE / "generated").glob("*.json"), *(HERE / "alerts").glob("*.yaml")} - set(wanted)
    other = {path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text}
    return sorted(stale | other)
