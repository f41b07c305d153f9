"""The store's configuration, read once when the process starts. Environment prefix: ``KVPATH_STORE_``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

MIB = 1024 * 1024


class StoreSettings(BaseSettings):
    """Where the store listens and how large it may grow. Sizes in bytes, times in seconds."""

    model_config = SettingsConfigDict(env_prefix="KVPATH_STORE_", frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="address to listen on; beyond loopback only when set")
    port: int = Field(default=4318, ge=0, le=65535, description="0 picks a free one")
    path: Path = Field(default=Path("out/store/traces.db"), description="the SQLite file")
    max_bytes: int = Field(default=1024 * MIB, ge=4 * MIB, description="bound on the database with its write-ahead log")
    retention_s: float = Field(default=7 * 86400.0, gt=0, description="age of arrival from which traces are evicted")
    max_body_bytes: int = Field(default=16 * MIB, ge=1024, description="bound on one export request, decompressed")
    queue_bytes: int = Field(default=64 * MIB, ge=1024, description="decoded requests that may wait for the writer")
    search_timeout_s: float = Field(default=30.0, gt=0, description="a search that takes longer fails rather than lies")

    @model_validator(mode="after")
    def _fits(self) -> StoreSettings:
        if self.max_bytes < 4 * self.max_body_bytes:
            raise ValueError(
                f"max_bytes ({self.max_bytes}) must be at least four times max_body_bytes ({self.max_body_bytes}): "
                "one request must fit the write-ahead log and the database at once"
            )
        return self
