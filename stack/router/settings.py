"""The router's configuration: one frozen object, read once at the entry and passed down.

Sources, strongest first: command-line flags, the JSON file of ``--config``, ``KVPATH_ROUTER_*`` variables, defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from connector import names

ROUTED_TRANSFERS = (names.MODE_PUSH, names.MODE_PULL, names.MODE_REUSE)
DEFAULT_MODES = (names.MODE_PUSH, names.MODE_PULL)  # of an engine; reuse needs to be set up on it


def _one_of(*allowed: str) -> AfterValidator:
    def check(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
        return value

    return AfterValidator(check)


def _without_trailing_slash(url: object) -> object:
    return url.rstrip("/") if isinstance(url, str) else url


TransferMode = Annotated[str, _one_of(*ROUTED_TRANSFERS)]
Mode = Annotated[str, _one_of(*ROUTED_TRANSFERS, names.MODE_PLAIN)]
Role = Literal["prefill", "decode"]
PREFILL: Role = "prefill"
DECODE: Role = "decode"
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
BaseUrl = Annotated[str, BeforeValidator(_without_trailing_slash), Field(pattern=r"^https?://[^/\s]+$")]


class EngineSettings(BaseModel):
    """One engine: where it listens, and for a prefill engine how D reaches its NIXL side channel.

    ``kept_url`` is where a decode engine that serves reuse tells what it keeps of a finished request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: BaseUrl
    role: Role
    engine_id: str = Field(min_length=1, max_length=200)
    side_channel_host: str | None = None
    side_channel_port: Port | None = None
    tp_size: int = Field(default=1, ge=1)
    pp_size: int = Field(default=1, ge=1)
    modes: tuple[TransferMode, ...] = DEFAULT_MODES
    kept_url: BaseUrl | None = None

    @model_validator(mode="after")
    def _push_needs_the_side_channel(self) -> EngineSettings:
        reachable = self.side_channel_host is not None and self.side_channel_port is not None
        if self.role == PREFILL and names.MODE_PUSH in self.modes and not reachable:
            raise ValueError(
                f"prefill engine {self.engine_id!r} serves push but has no side_channel_host and side_channel_port;"
                ' give both, or set "modes": ["pull"]'
            )
        return self

    @model_validator(mode="after")
    def _reuse_needs_the_kept_service(self) -> EngineSettings:
        if names.MODE_REUSE in self.modes and self.role == DECODE and self.kept_url is None:
            raise ValueError(
                f"decode engine {self.engine_id!r} serves reuse but has no kept_url; give the address of its"
                " connector's kvpath_kept_host and kvpath_kept_port"
            )
        return self


class RouterSettings(BaseSettings):
    """Everything a router process is told from outside. Times are in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="KVPATH_ROUTER_", frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    engines: tuple[EngineSettings, ...]
    default_mode: Mode = names.MODE_PUSH
    split: dict[Mode, Annotated[float, Field(ge=0)]] = {}
    allow_mode_header: bool = False
    model_name: str | None = None  # for spans of requests that name no model
    deadline_s: Seconds = 300.0  # request in -> first byte of the response
    stream_idle_s: Seconds = 300.0  # longest silence of an engine that has begun to answer, and before that too
    connect_timeout_s: Seconds = 2.0
    keepalive_s: Seconds = 4.0  # below the engines' own 5 s, so that they seldom close first
    health_interval_s: Seconds = 1.0
    health_timeout_s: Seconds = 5.0  # a probe slower than this is a miss; several in a row are needed to condemn
    max_body_bytes: int = Field(default=32 * 2**20, ge=1)
    shutdown_grace_s: int = Field(default=1, ge=1)  # for requests in flight when the router is told to stop
    reuse_ttl_s: Seconds = 480.0  # how long D keeps the blocks of a turn; a hit does not renew it
    reuse_margin_s: float = Field(default=5.0, ge=0)  # sooner than that, by the router's own clock
    reuse_min_tokens: int = Field(default=64, ge=1)  # fewer are computed again
    reuse_max_conversations: int = Field(default=100_000, ge=1)  # remembered in this process
    reuse_kept_timeout_s: Seconds = 0.25  # for D's word, and shared memory's, while a client waits
    reuse_store_url: SecretStr | None = None  # redis://, rediss:// or unix://, shared; None: in this process
    admin_token: SecretStr | None = None  # None: the admin endpoints do not exist
    otlp_endpoint: str | None = None  # None: no spans

    @field_validator("admin_token")
    @classmethod
    def _token_is_not_empty(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not token.get_secret_value():
            raise ValueError("admin_token is empty; unset it to switch the admin endpoints off")
        return token

    @field_validator("reuse_store_url")
    @classmethod
    def _store_is_redis(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not url.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("reuse_store_url must begin with redis://, rediss:// or unix://")
        return url

    @model_validator(mode="after")
    def _consistent(self) -> RouterSettings:
        ids = [engine.engine_id for engine in self.engines]
        if len(set(ids)) != len(ids):
            raise ValueError(f"engine_id must be unique, got {ids}")
        if self.reuse_margin_s >= self.reuse_ttl_s:
            raise ValueError("reuse_margin_s must be less than reuse_ttl_s, or nothing is ever reused")
        if not any(engine.role == DECODE for engine in self.engines):
            raise ValueError("no decode engine is configured; every request ends on one")
        unserved = split_problem(self, self.split) if self.split else mode_problem(self, self.default_mode)
        if unserved:
            raise ValueError(unserved)
        return self


def configured_modes(settings: RouterSettings) -> tuple[str, ...]:
    """Returns the modes that the configured engines can serve, whatever their health."""
    served = [
        mode
        for mode in ROUTED_TRANSFERS
        if all(any(e.role == role and mode in e.modes for e in settings.engines) for role in (PREFILL, DECODE))
    ]
    return (*served, names.MODE_PLAIN)


def mode_problem(settings: RouterSettings, mode: str) -> str | None:
    """Says why ``mode`` cannot be served by the configured engines, or ``None`` when it can."""
    if mode in configured_modes(settings):
        return None
    return f"mode {mode!r} needs a prefill and a decode engine that support it; none is configured"


def split_problem(settings: RouterSettings, split: Mapping[str, float]) -> str | None:
    """Says why ``split`` cannot be applied, or ``None`` when it can. An empty split is fine: the default applies."""
    if split and sum(split.values()) <= 0:
        return "the weights of a split must not all be 0"
    problems = (mode_problem(settings, mode) for mode, weight in split.items() if weight > 0)
    return next((problem for problem in problems if problem), None)
