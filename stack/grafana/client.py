"""Grafana's HTTP API, as far as kvpath needs it, on the package ``grafana-client``. Blocking; one thread at a time.

Relied on: the ``/api`` endpoints. Grafana 13 calls them deprecated in favour of ``/apis``, keeps them "fully accessible
and operative" and plans their removal for a later major release; older and managed Grafanas have nothing else.
Amazon Managed Grafana answers ``/api/health`` with 400; there the version comes from ``/api/frontend/settings``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from stack.grafana.errors import ForbiddenError, GrafanaError, TokenRefusedError, UnreachableError
from stack.grafana.settings import TOKEN, GrafanaSettings

TIMEOUT_S = 10.0  # to connect, and for every silence after that
PROVISIONED = "Cannot save provisioned dashboard"  # what Grafana says with status 400


@dataclass(frozen=True, slots=True)
class DataSource:
    uid: str
    kind: str  # "prometheus", "tempo", "grafana-amazonprometheus-datasource"
    name: str = ""


@dataclass(frozen=True, slots=True)
class StoredDashboard:
    """A dashboard as Grafana has it. ``read_only``: it comes from files on Grafana's own disk."""

    model: Mapping[str, Any]
    version: int
    folder_uid: str
    read_only: bool


class Grafana:
    """One Grafana; use as a context manager. Every method raises :class:`GrafanaError`, ready to be shown."""

    def __init__(self, settings: GrafanaSettings, timeout_s: float = TIMEOUT_S) -> None:
        try:
            from grafana_client import GrafanaApi
            from grafana_client.client import GrafanaException
        except ModuleNotFoundError as error:
            raise GrafanaError(f"this needs {error.name}: pip install 'kvpath[grafana]'") from None
        self.url = settings.url
        self._token = settings.token.get_secret_value()
        self._refusal = GrafanaException
        parts = urlsplit(settings.url)
        host = parts.hostname or ""
        path = parts.path.strip("/")
        self._api = GrafanaApi(
            self._token or None,
            host=f"[{host}]" if ":" in host else host,
            port=parts.port,
            url_path_prefix=f"{path}/" if path else "",
            protocol=parts.scheme,
            timeout=timeout_s,
        )

    def __enter__(self) -> Grafana:
        return self

    def __exit__(self, *_: object) -> None:
        self._api.client.s.close()

    def version(self) -> str:
        """Asks for health. Works with any token, also with a wrong one."""
        try:
            health = self._ask("ask for its health", lambda: self._api.client.GET("/health"))
        except UnreachableError:
            raise
        except GrafanaError:
            settings = self._ask("read its settings", lambda: self._api.client.GET("/frontend/settings"))
            return str(_mapping(settings.get("buildInfo")).get("version", "of an unknown version"))
        if health.get("database", "ok") != "ok":
            raise GrafanaError(f"Grafana at {self.url} says that its database is {health['database']}")
        return str(health.get("version", "of an unknown version"))

    def data_source(self, uid: str) -> DataSource | None:
        found = self._find(f"read data source {uid}", lambda: self._api.client.GET(f"/datasources/uid/{quote(uid)}"))
        return found and DataSource(str(found.get("uid", uid)), str(found.get("type", "")), str(found.get("name", "")))

    def up(self, source: DataSource) -> tuple[int, int]:
        """Has Grafana query ``up``: returns how many targets Prometheus knows, and how many of them answer."""
        query = {"refId": "A", "datasource": {"uid": source.uid, "type": source.kind}, "expr": "up", "instant": True}
        body = {"queries": [query], "from": "now-5m", "to": "now"}
        answer = self._ask(f"query {source.uid}", lambda: self._api.client.POST("/ds/query", json=body))
        result = _mapping(_mapping(answer.get("results")).get("A"))
        if result.get("error"):
            raise GrafanaError(f"cannot query {source.uid}: {_one_line(result['error'])}")
        values = [value for frame in result.get("frames") or () for value in _numbers(frame)]
        return len(values), sum(1 for value in values if value)

    def search(self, source: DataSource) -> int:
        """Has Grafana search for any trace: returns how many were found, at most 1."""
        path = f"/datasources/proxy/uid/{quote(source.uid)}/api/search?q={quote('{}')}&limit=1"
        answer = self._ask(f"search {source.uid}", lambda: self._api.client.GET(path))
        return len(answer.get("traces") or ())

    def folder(self, uid: str) -> str | None:
        """Returns the folder's title."""
        found = self._find(f"read folder {uid}", lambda: self._api.folder.get_folder(quote(uid)))
        return found and str(found.get("title", uid))

    def create_folder(self, uid: str, title: str) -> None:
        try:
            self._ask(f"create folder {uid}", lambda: self._api.folder.create_folder(title, uid))
        except GrafanaError as error:
            if error.status != 412:  # somebody else was faster
                raise

    def dashboard(self, uid: str) -> StoredDashboard | None:
        found = self._find(f"read dashboard {uid}", lambda: self._api.dashboard.get_dashboard(quote(uid)))
        if found is None:
            return None
        model, meta = _mapping(found.get("dashboard")), _mapping(found.get("meta"))
        version = model.get("version", meta.get("version", 0))
        return StoredDashboard(model, int(version or 0), str(meta.get("folderUid", "")), bool(meta.get("provisioned")))

    def newest_message(self, uid: str) -> str:
        """Returns what was said when the dashboard's newest version was saved."""
        path = f"/dashboards/uid/{quote(uid)}/versions?limit=1"
        answer = self._ask(f"read the versions of {uid}", lambda: self._api.client.GET(path), kind=(dict, list))
        versions = answer if isinstance(answer, list) else answer.get("versions") or []  # a list before Grafana 12
        newest = max(map(_mapping, versions), key=lambda version: int(version.get("version") or 0), default={})
        return str(newest.get("message", ""))

    def save(self, model: Mapping[str, Any], folder_uid: str, message: str, version: int | None) -> int:
        """Saves a dashboard over ``version`` (``None``: as a new one) and returns its new version.

        Refused with status 412 when it has another version by now.
        """
        uid = model["uid"]
        dashboard = {**model, "id": None} | ({} if version is None else {"version": version})
        body = {"dashboard": dashboard, "folderUid": folder_uid, "message": message, "overwrite": False}
        answer = self._ask(f"save dashboard {uid}", lambda: self._api.dashboard.update_dashboard(body))
        if answer.get("status") != "success":
            raise GrafanaError(f"cannot save dashboard {uid}: {_one_line(answer)}")
        return int(answer.get("version") or 0)

    def annotate(self, text: str, tags: Sequence[str], start_ms: int, end_ms: int | None) -> None:
        """Writes an annotation of the whole organization: dashboards show it by its tags."""
        body = {"text": text, "tags": list(tags), "time": start_ms} | ({} if end_ms is None else {"timeEnd": end_ms})
        answer = self._ask("write an annotation", lambda: self._api.client.POST("/annotations", json=body))
        if "id" not in answer:
            raise GrafanaError(f"cannot write an annotation: {_one_line(answer)}")

    def _find(self, doing: str, request: Callable[[], Any]) -> Any:
        """Like :meth:`_ask`, with ``None`` for what is not there."""
        try:
            return self._ask(doing, request)
        except GrafanaError as error:
            if error.status == 404:
                return None
            raise

    def _ask(self, doing: str, request: Callable[[], Any], kind: Any = dict) -> Any:
        try:
            answer = request()
        except self._refusal as error:
            raise self._refused(doing, error) from None
        except json.JSONDecodeError:
            answer = None
        except OSError as error:  # the HTTP library's exceptions are all of this kind
            raise UnreachableError(f"no Grafana answers at {self.url}: {self._clean(_cause(error))}") from None
        if not isinstance(answer, kind):
            raise UnreachableError(f"what answers at {self.url} is not Grafana's API (a login page, a wrong path?)")
        return answer

    def _refused(self, doing: str, error: Any) -> GrafanaError:
        said = error.response.get("message", "") if isinstance(error.response, dict) else error.response
        said = self._clean(_one_line(said or error.message))
        if error.status_code == 401:
            return TokenRefusedError(f"Grafana at {self.url} {self._unknown_token(said)}", 401)
        if error.status_code == 403:
            return ForbiddenError(f"the token may not {doing}: {said}", 403)
        return GrafanaError(f"cannot {doing}: Grafana answers {error.status_code}, {said}", error.status_code)

    def _unknown_token(self, said: str) -> str:
        if not self._token:
            return f"wants a token: set {TOKEN} to one of a service account"
        return f"does not accept the token ({said}): set {TOKEN} to one of a service account of this Grafana"

    def _clean(self, text: str) -> str:
        return text.replace(self._token, "***") if self._token else text


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _numbers(frame: Any) -> list[float]:
    """The last value of every numeric column of a data frame."""
    fields = _mapping(_mapping(frame).get("schema")).get("fields") or ()
    columns = _mapping(_mapping(frame).get("data")).get("values") or ()
    numeric = (column for field, column in zip(fields, columns, strict=False) if field.get("type") == "number")
    return [column[-1] for column in numeric if column and column[-1] is not None]


def _cause(error: BaseException) -> str:
    """The innermost reason of a failed connection: "Connection refused", not the four exceptions around it."""
    inner: Any = error
    for _ in range(10):
        deeper = getattr(inner, "reason", None)
        if not isinstance(deeper, BaseException):
            deeper = next((arg for arg in getattr(inner, "args", ()) if isinstance(arg, BaseException)), None)
        deeper = deeper or inner.__cause__
        if deeper is None:
            break
        inner = deeper
    text = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    return _one_line(text)


def _one_line(value: Any, limit: int = 300) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= limit else text[:limit] + "..."
