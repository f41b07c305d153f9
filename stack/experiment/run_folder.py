"""The folder of one experiment: plan, environment, raw rows, link probe, result. Nothing recorded is ever lost.

- ``plan.json``, ``environment.json``, ``probe.json``, ``result.json``: written whole or not at all.
- ``requests.jsonl``: one row a request, appended as requests end, forced to disk at the end of a block.
- ``paths.jsonl``: one row a request, what its trace says.
- ``blocks.jsonl``: one row a *finished* block. A block without one is repeated, under the next attempt number, and
  the rows of the earlier attempt stay in the files and count for nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stack.experiment.load import Row, row_from
from stack.experiment.plan import PLAN_SCHEMA, Block, Plan, PlanError, plan_from
from stack.experiment.target import EarlyChoices

PLAN, ENVIRONMENT, PROBE, RESULT = "plan.json", "environment.json", "probe.json", "result.json"
REQUESTS, PATHS, BLOCKS = "requests.jsonl", "paths.jsonl", "blocks.jsonl"


class FolderError(Exception):
    """The folder cannot be used for this experiment; one line for the user, and nothing was changed in it."""


@dataclass(frozen=True, slots=True)
class FinishedBlock:
    """A block that counts: ``attempt`` names the rows that belong to it."""

    block: int
    attempt: int
    seconds: float
    early_choices: EarlyChoices = field(default_factory=EarlyChoices)


def project_version() -> str:
    """Returns the version of kvpath, "unknown" when it runs without being installed."""
    try:
        return version("kvpath")
    except PackageNotFoundError:
        return "unknown"


class RunFolder:
    """One experiment on disk. Used by one process at a time."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self.plan = plan
        self._finished = {each.block: each for each in _finished(path / BLOCKS)}
        self._attempts: dict[int, int] = {}
        for row in _rows(path / REQUESTS):
            block = row["block"]
            self._attempts[block] = max(self._attempts.get(block, 0), row["attempt"])

    @classmethod
    def create(cls, path: Path, plan: Plan) -> RunFolder:
        """Starts a new folder; raises :class:`FolderError` when there is an experiment in it already."""
        if (path / PLAN).exists():
            raise FolderError(f"{path} already holds an experiment; continue it with --resume or choose another --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
            _write(path / PLAN, plan.document() | {"kvpath": project_version()})
        except OSError as error:
            raise FolderError(f"cannot write to {path}: {error.strerror or error}") from None
        return cls(path, plan)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Opens a folder to go on with it; raises :class:`FolderError` when this version cannot."""
        try:
            found = json.loads((path / PLAN).read_text())
        except FileNotFoundError:
            raise FolderError(f"{path} holds no experiment to resume: there is no {PLAN}") from None
        except (OSError, ValueError) as error:
            raise FolderError(f"cannot read {path / PLAN}: {error}") from None
        if not isinstance(found, dict) or found.get("schema") != PLAN_SCHEMA:
            schema = found.get("schema") if isinstance(found, dict) else None
            raise FolderError(f"{path} was written in format {schema!r}, this is {PLAN_SCHEMA!r}; choose another --out")
        made_by = found.pop("kvpath", None)
        if made_by != project_version():
            raise FolderError(
                f"{path} was written by kvpath {made_by}, this is {project_version()}; "
                "one experiment is measured by one version: choose another --out"
            )
        try:
            return cls(path, plan_from(found))
        except PlanError as error:
            raise FolderError(f"{path / PLAN}: {error}") from None

    def finished(self, block: Block) -> bool:
        return block.index in self._finished

    def next_attempt(self, block: Block) -> int:
        """Returns the number under which to (re)do a block, from 1."""
        return self._attempts.get(block.index, 0) + 1

    def append_request(self, row: Row) -> None:
        """Appends one row, handed to the operating system at once; :meth:`finish` forces it to disk."""
        self._attempts[row.block] = max(self._attempts.get(row.block, 0), row.attempt)
        _append(self.path / REQUESTS, [row.document()], sync=False)

    def finish(self, done: FinishedBlock, paths: Iterable[Mapping[str, Any]]) -> None:
        """Makes a block count: everything of it is on disk before the row that says so."""
        _append(self.path / PATHS, paths, sync=True)
        _append(self.path / REQUESTS, (), sync=True)
        choices = {"kept": done.early_choices.kept, "regretted": done.early_choices.regretted}
        row = {"block": done.block, "attempt": done.attempt, "seconds": done.seconds, "early_choices": choices}
        _append(self.path / BLOCKS, [row], sync=True)
        self._finished[done.block] = done

    def blocks(self) -> dict[int, FinishedBlock]:
        return dict(self._finished)

    def requests(self) -> list[Row]:
        """Returns the rows of finished blocks, in the order in which the requests ended."""
        return [row_from(row) for row in _rows(self.path / REQUESTS) if self._counts(row)]

    def paths(self) -> dict[str, dict[str, Any]]:
        """Returns what the traces of finished blocks say, by trace id."""
        return {row["trace_id"]: row for row in _rows(self.path / PATHS) if self._counts(row)}

    def _counts(self, row: Mapping[str, Any]) -> bool:
        done = self._finished.get(row["block"])
        return done is not None and done.attempt == row["attempt"]

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        _write(self.path / name, document)

    def read(self, name: str) -> dict[str, Any] | None:
        """Returns one of the documents, ``None`` when it is not there (yet)."""
        try:
            found = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            raise FolderError(f"{self.path / name} is not JSON; remove it to have it measured again") from None
        return found if isinstance(found, dict) else None


def _write(path: Path, document: Mapping[str, Any]) -> None:
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as file:
        file.write(json.dumps(document, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _append(path: Path, documents: Iterable[Mapping[str, Any]], *, sync: bool) -> None:
    with path.open("ab") as file:
        # What a crash tore off in the middle of a line must not swallow the next one.
        torn = file.tell() > 0 and _last_byte(path) != b"\n"
        lines = [json.dumps(document, separators=(",", ":")) + "\n" for document in documents]
        file.write((("\n" if torn and lines else "") + "".join(lines)).encode())
        file.flush()
        if sync:
            os.fsync(file.fileno())


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    """Yields the whole lines of a JSONL file; a line that a crash tore is skipped."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and "block" in row and "attempt" in row:
                yield row


def _finished(path: Path) -> Iterable[FinishedBlock]:
    for row in _rows(path):
        yield FinishedBlock(row["block"], row["attempt"], row["seconds"], EarlyChoices(**row["early_choices"]))
