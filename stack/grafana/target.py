"""What of a Grafana kvpath uses: a folder, and the data sources that stand for the dashboards' own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from connector import names
from stack.grafana.client import DataSource, Grafana
from stack.grafana.errors import ForbiddenError, GrafanaError

PROMETHEUS, TEMPO = names.GRAFANA_PROMETHEUS_UID, names.GRAFANA_TEMPO_UID
_KINDS = {PROMETHEUS: "prometheus", TEMPO: "tempo"}
OPTIONS = {PROMETHEUS: "--data-source-prometheus", TEMPO: "--data-source-tempo"}


@dataclass(frozen=True, slots=True)
class Target:
    """``uids``: the data source to use in place of each of the dashboards' own.

    ``folder_uid`` is made when it is missing, unless somebody chose it (``folder_chosen``).
    """

    uids: Mapping[str, str] = field(default_factory=lambda: {uid: uid for uid in _KINDS})
    folder_uid: str = names.GRAFANA_FOLDER_UID
    folder_chosen: bool = False


def find_data_source(grafana: Grafana, target: Target, own_uid: str) -> DataSource:
    """Returns what stands for one of the dashboards' data sources; raises :class:`GrafanaError` when nothing does.

    A token that may query data sources need not be allowed to look at them: then it is taken as it was named.
    """
    uid = target.uids[own_uid]
    try:
        found = grafana.data_source(uid)
    except ForbiddenError:
        return DataSource(uid, _KINDS[own_uid])
    if found is None:
        raise GrafanaError(
            f"data source {uid} does not exist in {grafana.url}: create it with this uid, or give the uid of yours "
            f"with {OPTIONS[own_uid]}"
        )
    if _KINDS[own_uid] not in found.kind:
        raise GrafanaError(f"data source {uid} is of type {found.kind}, and must be {_KINDS[own_uid]}")
    return found
