"""Reads traces over Tempo's HTTP API, which Grafana Tempo and the embedded store both speak.

``/api/search`` gives ids (hex, leading zeros cut by Tempo), ``/api/traces/{id}`` the spans: ``batches`` with base64
ids from Tempo, ``resourceSpans`` with hex ids from stores that follow OTLP more closely. Every failure becomes one
:class:`SourceError` whose message is one line and says what to try.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx

from connector import names
from stack.analysis.otlp_json import OtlpJsonError, group, spans_of
from stack.analysis.trace import Trace

DEFAULT_URL = "http://127.0.0.1:4318"
DEFAULT_LIMIT = 1000  # traces
DEFAULT_SINCE_S = 3600.0
ROUTER_QUERY = f'{{ resource.service.name = "{names.SERVICE_ROUTER}" }}'


class SourceError(RuntimeError):
    """The trace store could not answer; the message is one line for the user."""


class UnreachableError(SourceError):
    """No answer at all: nothing listens there, or not in time."""


class TraceSource:
    """A trace store behind an HTTP URL; use as a context manager. Any thread may ask."""

    def __init__(self, url: str = DEFAULT_URL, timeout_s: float = 10.0) -> None:
        """Raises :class:`SourceError` when ``url`` is not an HTTP URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise SourceError(f"{url!r} is not an http:// or https:// URL of a trace store")
        self.url = url.rstrip("/")
        self._client = httpx.Client(timeout=timeout_s, headers={"Accept": "application/json"})

    def __enter__(self) -> TraceSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def search(
        self, *, since_s: float = DEFAULT_SINCE_S, limit: int = DEFAULT_LIMIT, query: str = ROUTER_QUERY
    ) -> list[str]:
        """Returns trace ids of the last ``since_s`` seconds, newest first, at most ``limit``."""
        now = time.time()
        hits = self._hits(query, now - since_s, math.floor(now) + 1, limit)
        hits.sort(key=lambda hit: int(hit.get("startTimeUnixNano") or 0), reverse=True)
        return [_trace_id(hit) for hit in hits[:limit]]

    def search_between(self, start_s: float, end_s: float, *, limit: int, query: str = ROUTER_QUERY) -> list[str]:
        """Returns ids of traces that overlap a window of Unix time, in no order; ``limit`` of them: there may be more.

        Which of too many a store returns is its own affair, and it may return a few more than ``limit``.
        """
        return [_trace_id(hit) for hit in self._hits(query, start_s, end_s, limit)]

    def _hits(self, query: str, start_s: float, end_s: float, limit: int) -> list[dict[str, Any]]:
        # Whole seconds, rounded outwards; Tempo looks into its long-term storage only when both ends are given.
        window = {"start": str(math.floor(start_s)), "end": str(math.ceil(end_s))}
        found = self._get("/api/search", {"q": query, "limit": str(limit), **window})
        hits = found.get("traces") or [] if isinstance(found, dict) else None
        if not isinstance(hits, list) or not all(isinstance(h, dict) and h.get("traceID") for h in hits):
            raise SourceError(f"{self.url}/api/search did not answer in the form of Tempo's API")
        return hits

    def fetch(self, trace_id: str) -> Trace | None:
        """Returns one trace, ``None`` when the store does not have it."""
        found = self._get(f"/api/traces/{trace_id}", {}, missing=(404,))
        if found is None:
            return None
        try:
            traces = group(spans_of(found))
        except OtlpJsonError as error:
            raise SourceError(f"{self.url}/api/traces/{trace_id}: {error}") from None
        return next((t for t in traces if t.trace_id == trace_id), None)

    def traces(self, *, since_s: float = DEFAULT_SINCE_S, limit: int = DEFAULT_LIMIT) -> Iterator[Trace]:
        """Yields the traces of :meth:`search`; one that the store dropped in between is left out."""
        for trace_id in self.search(since_s=since_s, limit=limit):
            trace = self.fetch(trace_id)
            if trace is not None:
                yield trace

    def _get(self, path: str, params: dict[str, str], missing: tuple[int, ...] = ()) -> Any:
        try:
            response = self._client.get(self.url + path, params=params)
        except httpx.TimeoutException:
            raise UnreachableError(f"the trace store at {self.url} did not answer in time") from None
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"cannot reach the trace store at {self.url} ({error}); is it running? Name another with --url"
            ) from None
        if response.status_code in missing:
            return None
        if response.status_code != 200:
            text = " ".join(response.text.split())[:200]
            raise SourceError(f"{self.url}{path} answered {response.status_code}: {text}")
        try:
            return response.json()
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise SourceError(f"{self.url}{path} did not answer with JSON; is this a trace store?") from None


def _trace_id(hit: dict[str, Any]) -> str:
    return str(hit["traceID"]).lower().zfill(32)
