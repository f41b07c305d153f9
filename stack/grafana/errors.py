"""What goes wrong with Grafana. Every message is one line that says what failed and what to try, without a token.

GrafanaError
├── SettingsError       what was asked for makes no sense: exit status 2
├── UnreachableError    nothing there answers, or what answers is no Grafana
├── TokenRefusedError   401: nothing else will work either
└── ForbiddenError      403: the token is known, and may not do this
"""

from __future__ import annotations

EXIT_FAILED, EXIT_USAGE = 1, 2


class GrafanaError(Exception):
    """``status`` is the HTTP status, 0 where there was none."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class SettingsError(GrafanaError):
    exit_code = EXIT_USAGE


class UnreachableError(GrafanaError):
    pass


class TokenRefusedError(GrafanaError):
    pass


class ForbiddenError(GrafanaError):
    pass
