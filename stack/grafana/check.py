"""``kvpath grafana check``: whether a Grafana can show what the dashboards ask for. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from stack.grafana.client import DataSource, Grafana
from stack.grafana.dashboards import Model, data_sources, mapped
from stack.grafana.errors import EXIT_FAILED, ForbiddenError, GrafanaError, TokenRefusedError, UnreachableError
from stack.grafana.push import difference
from stack.grafana.target import PROMETHEUS, TEMPO, Target, find_data_source

Say = Callable[[str], None]
Query = Callable[[Grafana, DataSource], str]


def check(grafana: Grafana, dashboards: Sequence[Model], target: Target, say: Say) -> int:
    """Says one line for everything that was looked at; returns the exit status.

    Raises :class:`GrafanaError` when no further question makes sense: nothing answers, or the token is unknown.
    """
    report = _Report(say)
    report.good(f"Grafana {grafana.version()} answers at {grafana.url}")
    sources: dict[str, DataSource] = {}
    for own, query in ((PROMETHEUS, _targets), (TEMPO, _traces)):
        report.of(f"data source {target.uids[own]}", partial(_source, grafana, target, own, query, sources))
    report.of(f"folder {target.folder_uid}", partial(_folder, grafana, target.folder_uid))
    known = {source.uid: True for source in sources.values()}
    for model in dashboards:
        wanted = mapped(model, sources)
        report.of(f"dashboard {model['uid']}", partial(_dashboard, grafana, wanted, target.folder_uid, known))
    return EXIT_FAILED if report.failed else 0


class _Report:
    def __init__(self, say: Say) -> None:
        self._say = say
        self.failed = 0

    def good(self, line: str) -> None:
        self._say(f"ok    {line}")

    def of(self, what: str, look: Callable[[], str]) -> None:
        """``look`` returns a line when all is well, and raises when it is not."""
        try:
            self.good(look())
        except (TokenRefusedError, UnreachableError):
            raise
        except GrafanaError as error:
            self.failed += 1
            self._say(f"FAIL  {what}: {error}")


def _source(
    grafana: Grafana,
    target: Target,
    own: str,
    query: Callable[[Grafana, DataSource], str],
    found: dict[str, DataSource],
) -> str:
    found[own] = source = find_data_source(grafana, target, own)
    return f"data source {source.uid}: {query(grafana, source)}"


def _targets(grafana: Grafana, source: DataSource) -> str:
    known, up = grafana.up(source)
    if not known:
        raise GrafanaError("it answers, but knows no target: `up` is empty, so nothing of kvpath is scraped")
    return f"`up` has {known} series, {up} of them are 1"


def _traces(grafana: Grafana, source: DataSource) -> str:
    return "answers a search" + ("" if grafana.search(source) else "; it has no recent trace")


def _folder(grafana: Grafana, uid: str) -> str:
    title = grafana.folder(uid)
    if title is None:
        raise GrafanaError("it does not exist; `kvpath grafana push` makes it")
    return f"folder {uid}: {title}"


def _dashboard(grafana: Grafana, model: Model, folder_uid: str, known: dict[str, bool]) -> str:
    stored = grafana.dashboard(model["uid"])
    if stored is None:
        raise GrafanaError("it is not there; `kvpath grafana push` brings it")
    missing = [uid for uid in data_sources(stored.model) if not _exists(grafana, uid, known)]
    if missing:
        raise GrafanaError(f"it asks data source {', '.join(missing)}, which does not exist")
    changed = difference(grafana, model, stored, folder_uid)
    if changed is not None:
        remedy = "change the files it comes from" if stored.read_only else "`kvpath grafana push` puts it right"
        raise GrafanaError(f"{changed}; {remedy}")
    return f"dashboard {model['uid']}: version {stored.version}, unchanged"


def _exists(grafana: Grafana, uid: str, known: dict[str, bool]) -> bool:
    if uid not in known:
        try:
            known[uid] = grafana.data_source(uid) is not None
        except ForbiddenError:  # cannot tell
            known[uid] = True
    return known[uid]
