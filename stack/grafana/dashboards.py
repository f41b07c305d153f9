"""The dashboards that kvpath brings along, and how they compare with what a Grafana has of them. Pure but for reading.

Whether a stored dashboard is ours cannot always be seen from its content: Grafana 12 and 13 write a dashboard's default
values into it, or take them out, when they save it. So every push leaves its digest in the version's message, and a
dashboard is unchanged when its content is the same *or* its newest version carries the digest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from stack.grafana.client import DataSource
from stack.grafana.errors import SettingsError

# Grafana's own, which need no data source that somebody made.
BUILT_IN = frozenset({"grafana", "-- Grafana --", "-- Mixed --", "-- Dashboard --", "__expr__"})
_OF_GRAFANA = frozenset({"id", "version"})  # Grafana gives these to every dashboard
_PLACES = ("datasource", "datasourceUid")

Model = Mapping[str, Any]


def read_dashboards(folder: Path | None = None) -> list[Model]:
    """Returns the generated dashboards by uid; raises :class:`SettingsError` for a folder that has none."""
    place = folder or Path(str(files("dashboards"))) / "generated"
    models = [_read(file) for file in sorted(place.glob("*.json"))]
    if not models:
        raise SettingsError(f"there are no dashboards (*.json) in {place}")
    twice = {model["uid"] for model in models if sum(other["uid"] == model["uid"] for other in models) > 1}
    if twice:
        raise SettingsError(f"two dashboards in {place} have the uid {twice.pop()}")
    return models


def _read(file: Path) -> Model:
    try:
        model = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read the dashboard {file}: {error}") from None
    if not isinstance(model, dict) or not all(isinstance(model.get(key), str) for key in ("uid", "title")):
        raise SettingsError(f"{file} is no dashboard: it has no uid or no title")
    return model


def mapped(model: Model, sources: Mapping[str, DataSource]) -> Model:
    """Returns the dashboard with other data sources: ``sources`` says which one stands for which uid."""
    names = "|".join(map(re.escape, sources))
    pattern = re.compile(rf"(?<![\w-])(?:{names})(?![\w-])") if sources else None

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            source = sources.get(value["uid"]) if isinstance(value.get("uid"), str) else None
            new = {key: walk(inner) for key, inner in value.items()}
            return new | {"type": source.kind} if source is not None and source.kind and "type" in value else new
        if isinstance(value, list):
            return [walk(inner) for inner in value]
        if isinstance(value, str) and pattern is not None:  # also inside links to Explore
            return pattern.sub(lambda found: sources[found[0]].uid, value)
        return value

    changed: Model = walk(model)
    return changed


def data_sources(model: Model) -> list[str]:
    """Returns the uids of the data sources that a dashboard refers to, in the order of their appearance."""
    return list(dict.fromkeys(uid for uid in _uids(model) if uid not in BUILT_IN and "$" not in uid))


def _uids(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in _PLACES:
                uid = inner.get("uid") if isinstance(inner, dict) else inner
                if isinstance(uid, str) and uid:
                    yield uid
            yield from _uids(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _uids(inner)


def same_content(ours: Model, stored: Model) -> bool:
    """Whether both say the same, apart from what Grafana gives to every dashboard."""
    return _canonical(ours) == _canonical(stored)


def stamp(model: Model) -> str:
    """Returns what identifies this content in a version's message."""
    return "sha256:" + hashlib.sha256(_canonical(model).encode()).hexdigest()[:16]


def _canonical(model: Model) -> str:
    own = {key: value for key, value in model.items() if key not in _OF_GRAFANA and value is not None}
    return json.dumps(own, sort_keys=True, separators=(",", ":"))
