"""Which Grafana, and the token for it: from the environment or a file, never from the command line."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from stack.grafana.errors import SettingsError

PREFIX = "KVPATH_GRAFANA_"
URL, TOKEN = f"{PREFIX}URL", f"{PREFIX}TOKEN"
_TOKEN = re.compile(r"[!-~]+")
_EXAMPLE = "https://grafana.example.org"


class GrafanaSettings(BaseSettings):
    """Empty values are as good as absent ones, so that a compose file can pass on what may be unset."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str = ""
    token: SecretStr = SecretStr("")  # "": requests carry none, for a Grafana that lets anybody edit
    token_file: str = ""


def read_settings(token_file: Path | None = None) -> GrafanaSettings | None:
    """Returns the settings with the token itself in them; ``None`` when no Grafana is named.

    Raises :class:`SettingsError`.
    """
    try:
        given = GrafanaSettings()
    except ValidationError as error:
        raise SettingsError("; ".join(f"{PREFIX}{e['loc'][0]}: {e['msg']}".upper() for e in error.errors())) from None
    if not given.url:
        return None
    _check(given.url)
    file = token_file or (Path(given.token_file) if given.token_file else None)
    token = given.token.get_secret_value() if file is None else _read(file)
    if token and not _TOKEN.fullmatch(token):
        where = TOKEN if file is None else str(file)
        raise SettingsError(f"{where} holds something that is no token: blanks, line breaks or letters beyond ASCII")
    return given.model_copy(update={"url": given.url.rstrip("/"), "token": SecretStr(token)})


def required_settings(token_file: Path | None = None) -> GrafanaSettings:
    """Like :func:`read_settings`, where nothing can be done without a Grafana."""
    settings = read_settings(token_file)
    if settings is None:
        raise SettingsError(f"no Grafana is named; set {URL}, for example to {_EXAMPLE}, and {TOKEN}")
    return settings


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is none, a bracket too many
        raise SettingsError(f"{URL} is no URL that makes sense; it should look like {_EXAMPLE}") from None
    if parts.username is not None or parts.password is not None:
        raise SettingsError(f"{URL} must not hold a user or a password; give a service account's token in {TOKEN}")
    if not usable or parts.query or parts.fragment:
        raise SettingsError(f"{URL} is {url!r}, and must be an http:// or https:// URL such as {_EXAMPLE}")


def _read(file: Path) -> str:
    try:
        token = file.read_text("ascii").strip()
    except UnicodeDecodeError:
        raise SettingsError(f"{file} holds something that is no token") from None
    except OSError as error:
        raise SettingsError(f"cannot read the token from {file}: {error.strerror or error}") from None
    if not token:
        raise SettingsError(f"{file} is empty; it must hold the token")
    return token
