"""What can go wrong with a request, and how it looks to the client.

RouterError                  answered in the OpenAI error shape
├── BadRequestError          400/413, the client's request cannot be served
├── NoEngineError            503, no healthy engine for this mode
├── ShuttingDownError        503, the router was told to stop
├── UnreachableError         502, the engine did not accept a connection
├── ConnectTimeoutError      504, the engine did not accept a connection in time
├── BrokenAnswerError        502, the engine closed or garbled its answer
├── DeadlineError            504, nothing came in time
└── EngineAnsweredError      the engine's own status and body, passed on
"""

from __future__ import annotations

import json


class RouterError(Exception):
    """A failure with an HTTP status, an OpenAI error ``type`` and a bounded ``error_type`` for telemetry."""

    status = 500
    kind = "internal_error"
    error_type = "internal_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param

    def body(self) -> bytes:
        """Returns the response body, UTF-8 JSON."""
        return error_body(self.message, self.kind, self.code or self.error_type, self.param)

    def event(self) -> bytes:
        """Returns the error for an event stream that has begun: JSON on one line."""
        return self.body()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Returns the response headers that belong to :meth:`body`."""
        return [(b"content-type", b"application/json")]


def error_body(message: str, kind: str, code: str | None, param: str | None = None) -> bytes:
    """Returns an error in the OpenAI shape as UTF-8 JSON."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


class BadRequestError(RouterError):
    kind = "invalid_request_error"
    error_type = "bad_request"

    def __init__(self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message, code=code, param=param)
        self.status = status


class NoEngineError(RouterError):
    status = 503
    kind = "service_unavailable"
    error_type = "no_healthy_engine"

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), (b"retry-after", b"1")]


class ShuttingDownError(NoEngineError):
    error_type = "shutting_down"

    def __init__(self) -> None:
        super().__init__("the router is shutting down; send the request again")


class UnreachableError(RouterError):
    status = 502
    kind = "bad_gateway"
    error_type = "connect_error"


class ConnectTimeoutError(RouterError):
    status = 504
    kind = "gateway_timeout"
    error_type = "connect_timeout"


class BrokenAnswerError(RouterError):
    status = 502
    kind = "bad_gateway"
    error_type = "upstream_broken"


class DeadlineError(RouterError):
    status = 504
    kind = "gateway_timeout"
    error_type = "deadline_exceeded"


class EngineAnsweredError(RouterError):
    """An engine's own error, to be passed on as it is."""

    kind = "engine_error"

    def __init__(
        self, engine_id: str, status: int, body: bytes, content_type: str, retry_after: str | None = None
    ) -> None:
        super().__init__(f"engine {engine_id} answered {status}")
        self.status = status if status >= 400 else 502
        self.error_type = str(status)
        self._body = body
        self._content_type = content_type or "application/json"
        self._retry_after = retry_after

    def body(self) -> bytes:
        return self._body or super().body()

    def event(self) -> bytes:
        return super().body()  # the engine's own may span lines

    def headers(self) -> list[tuple[bytes, bytes]]:
        kind = self._content_type if self._body else "application/json"
        more = [(b"retry-after", self._retry_after.encode("latin-1"))] if self._retry_after else []
        return [(b"content-type", kind.encode("latin-1")), *more]
