"""What can go wrong in the trace store.

StoreError
├── BadRequestError            400  the caller's input is wrong; the message names the part
├── TraceNotFoundError         404
├── BodyTooLargeError          413  compressed or decompressed body over ``max_body_bytes``
├── UnsupportedMediaTypeError  415  not OTLP protobuf or JSON, or an unknown Content-Encoding
└── UnavailableError           503  nothing was stored or answered; retry after ``retry_after_s``
    ├── OverloadedError             the write queue is full
    ├── StorageError                SQLite refused: disk full, file corrupted, ...
    └── SearchTimeoutError          a search that no index serves took too long (no partial answers)
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of everything the store raises on purpose. ``status`` is the HTTP status it becomes."""

    status = 500
    reason = "internal"


class BadRequestError(StoreError):
    status = 400
    reason = "malformed"


class TraceNotFoundError(StoreError):
    status = 404
    reason = "not_found"


class UnsupportedMediaTypeError(StoreError):
    status = 415
    reason = "media_type"


class BodyTooLargeError(StoreError):
    status = 413
    reason = "too_large"


class UnavailableError(StoreError):
    status = 503
    reason = "unavailable"
    retry_after_s = 1


class OverloadedError(UnavailableError):
    reason = "queue_full"


class StorageError(UnavailableError):
    reason = "storage"
    retry_after_s = 5


class SearchTimeoutError(UnavailableError):
    reason = "search_timeout"
