"""The exporter's configuration, read once when the process starts. Environment prefix: ``KVPATH_EXPORTER_``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from stack.analysis.source import DEFAULT_URL


class ExporterSettings(BaseSettings):
    """What to follow and how patiently. Times in seconds."""

    model_config = SettingsConfigDict(env_prefix="KVPATH_EXPORTER_", frozen=True, extra="forbid")

    tempo_url: str = Field(default=DEFAULT_URL, description="trace store with Tempo's HTTP API")
    host: str = Field(default="127.0.0.1", description="address to listen on; beyond loopback only when set")
    port: int = Field(default=9400, ge=0, le=65535, description="0 picks a free one")
    state: Path = Field(
        default=Path("out/exporter/state.db"), description="SQLite file: what was counted before a restart"
    )
    since_s: float = Field(
        default=0.0, ge=0, description="on the very first start: count also what ended in this time before"
    )
    shard: int = Field(default=0, ge=0, description="which of the shards this instance counts, from 0")
    shards: int = Field(default=1, ge=1, description="instances that divide the traces among them by trace id")
    poll_s: float = Field(default=5.0, gt=0, description="pause between polls")
    grace_s: float = Field(default=60.0, gt=0, description="how long a finished trace may lack spans before it counts")
    lookback_s: float = Field(
        default=30.0, ge=0, description="delay up to which a finished trace becomes visible in the trace store"
    )
    sweep_after_s: float = Field(
        default=900.0, gt=0, description="age at which every trace is looked at again: came later, or never finished"
    )
    window_s: float = Field(default=1800.0, gt=0, description="sliding window of the difference push minus pull")
    limit: int = Field(default=1000, ge=1, le=10_000, description="traces asked for in one search")

    @model_validator(mode="after")
    def _consistent(self) -> ExporterSettings:
        if self.shard >= self.shards:
            raise ValueError(f"shard {self.shard} does not exist: shards are numbered from 0 to {self.shards - 1}")
        if self.sweep_after_s < self.lookback_s + self.grace_s:
            raise ValueError("sweep_after_s must be at least lookback_s + grace_s: a sweep is for what those missed")
        return self
