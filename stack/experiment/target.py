"""What an experiment asks its router before and between blocks: modes, model, limits, engines, choices regretted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from prometheus_client.parser import text_string_to_metric_families

from stack.router.metrics import EARLY_CHOICES, ENGINE_HEALTHY


class TargetError(Exception):
    """The router cannot serve this experiment; one line for the user."""


@dataclass(frozen=True, slots=True)
class Target:
    """A router that is ready. ``max_model_len`` in tokens; ``model_path`` is what the engine loaded, if it says so."""

    url: str
    model: str
    modes: tuple[str, ...]
    max_model_len: int | None = None
    model_path: str | None = None
    engines: Mapping[str, str] = field(default_factory=dict)  # engine id → role


@dataclass(frozen=True, slots=True)
class EarlyChoices:
    """How often push's choice of D would have been the same when P finished (kept), or another (regretted)."""

    kept: int = 0
    regretted: int = 0

    def since(self, before: EarlyChoices) -> EarlyChoices:
        """Returns what was added; a router that was restarted in between counts from zero."""
        if self.kept < before.kept or self.regretted < before.regretted:
            return self
        return EarlyChoices(self.kept - before.kept, self.regretted - before.regretted)


class Asker:
    """Speaks with one router; use as a context manager."""

    def __init__(self, url: str, timeout_s: float = 10.0) -> None:
        """Raises :class:`TargetError` when ``url`` is not an HTTP URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise TargetError(f"{url!r} is not an http:// or https:// URL of a router")
        self.url = url.rstrip("/")
        self._client = httpx.Client(timeout=timeout_s, trust_env=False)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def target(self) -> Target:
        """Raises :class:`TargetError` when the router cannot be reached or is not ready."""
        ready = self._json("/ready")
        if not ready.get("ready"):
            reasons = "; ".join(map(str, ready.get("reasons", ()))) or "it does not say why"
            raise TargetError(f"the router at {self.url} is not ready: {reasons}")
        models = self._json("/v1/models").get("data") or [{}]
        model = models[0]
        if not model.get("id"):
            raise TargetError(f"{self.url}/v1/models names no model; is this a kvpath router?")
        limit = model.get("max_model_len")
        return Target(
            url=self.url,
            model=model["id"],
            modes=tuple(ready.get("modes", ())),
            max_model_len=limit if isinstance(limit, int) else None,
            model_path=model.get("root"),
            engines={
                sample.labels["engine_id"]: sample.labels["role"]
                for sample in self._samples(ENGINE_HEALTHY)
                if "engine_id" in sample.labels
            },
        )

    def early_choices(self) -> EarlyChoices:
        """Returns the router's counts so far; zeros when it cannot tell."""
        try:
            counts = {s.labels.get("outcome"): int(s.value) for s in self._samples(EARLY_CHOICES)}
        except TargetError:
            return EarlyChoices()
        return EarlyChoices(counts.get("kept", 0), counts.get("regretted", 0))

    def _samples(self, metric: str) -> list[Any]:
        try:
            families = list(text_string_to_metric_families(self._get("/metrics").text))
        except ValueError:
            raise TargetError(f"{self.url}/metrics is not in Prometheus' format; is this a kvpath router?") from None
        wanted = (metric, metric + "_total")
        return [s for family in families for s in family.samples if s.name in wanted]

    def _json(self, path: str) -> dict[str, Any]:
        response = self._get(path)
        try:
            found = response.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise TargetError(f"{self.url}{path} did not answer with JSON; is this a kvpath router?")
        if response.status_code not in (200, 503):
            raise TargetError(f"{self.url}{path} answered HTTP {response.status_code}; is this a kvpath router?")
        return found

    def _get(self, path: str) -> httpx.Response:
        try:
            return self._client.get(self.url + path)
        except httpx.HTTPError as error:
            raise TargetError(
                f"cannot reach a router at {self.url} ({error or type(error).__name__}); "
                "start one with `kvpath up`, or name another with --router"
            ) from None
