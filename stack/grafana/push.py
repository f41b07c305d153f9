"""``kvpath grafana push``: puts the dashboards into a folder of an existing Grafana. A second push changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from connector import names
from stack.grafana.client import PROVISIONED, Grafana, StoredDashboard
from stack.grafana.dashboards import Model, mapped, same_content, stamp
from stack.grafana.errors import EXIT_FAILED, ForbiddenError, GrafanaError, TokenRefusedError, UnreachableError
from stack.grafana.target import Target, find_data_source

Say = Callable[[str], None]
READ_ONLY = "read-only: this Grafana takes it from its own files (provisioning), so only these can change it"


def push(grafana: Grafana, dashboards: Sequence[Model], target: Target, dry_run: bool, say: Say) -> int:
    """Says what becomes of each dashboard; returns the exit status.

    Raises :class:`GrafanaError` for what concerns all of them: the token, the folder, the data sources.
    """
    sources = {own: find_data_source(grafana, target, own) for own in target.uids}
    _folder(grafana, target, dry_run, say)
    failed = 0
    for model in dashboards:
        uid = model["uid"]
        try:
            say(f"{uid}: {_push_one(grafana, mapped(model, sources), target.folder_uid, dry_run)}")
        except (TokenRefusedError, UnreachableError):
            raise
        except GrafanaError as error:
            failed += 1
            say(f"{uid}: not pushed: {error}")
    return EXIT_FAILED if failed else 0


def _folder(grafana: Grafana, target: Target, dry_run: bool, say: Say) -> None:
    uid = target.folder_uid
    if grafana.folder(uid) is not None:
        return
    if target.folder_chosen:
        raise GrafanaError(f"folder {uid} does not exist in {grafana.url}: create it, or leave --folder out")
    if dry_run:
        say(f"folder {uid}: would be created")
        return
    try:
        grafana.create_folder(uid, names.GRAFANA_FOLDER_TITLE)
    except ForbiddenError as error:
        raise ForbiddenError(f"folder {uid} is missing and {error}; name one that exists with --folder") from None
    say(f"folder {uid}: created")


def _push_one(grafana: Grafana, model: Model, folder_uid: str, dry_run: bool) -> str:
    stored = grafana.dashboard(model["uid"])
    if stored is None:
        if dry_run:
            return "would be created"
        return f"created, version {_save(grafana, model, folder_uid, None)}"
    if difference(grafana, model, stored, folder_uid) is None:
        return f"unchanged, version {stored.version}"
    if stored.read_only:
        raise GrafanaError(READ_ONLY)
    if dry_run:
        return f"version {stored.version} would be replaced"
    new = _save(grafana, model, folder_uid, stored.version)
    return f"updated, version {stored.version} is now {new}"


def difference(grafana: Grafana, model: Model, stored: StoredDashboard, folder_uid: str) -> str | None:
    """Says how Grafana's dashboard differs from ours; ``None`` when it does not."""
    if stored.folder_uid != folder_uid and not stored.read_only:
        return f"it is in folder {stored.folder_uid or 'General'} and not in {folder_uid}"
    if same_content(model, stored.model):
        return None
    try:
        ours = stamp(model) in grafana.newest_message(model["uid"])
    except ForbiddenError:
        ours = False
    return None if ours else "its content differs"


def _save(grafana: Grafana, model: Model, folder_uid: str, version: int | None) -> int:
    try:
        return grafana.save(model, folder_uid, f"kvpath grafana push, {stamp(model)}", version)
    except GrafanaError as error:
        if error.status == 412:
            raise GrafanaError(f"{error}; push again to replace what it has become", 412) from None
        if PROVISIONED in str(error):
            raise GrafanaError(READ_ONLY, error.status) from None
        raise
