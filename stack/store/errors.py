"""What can go wrong in the trace store.

StoreError
├── BadRequest             400  the caller's input is wrong; the message names the part
├── TraceNotFound          404
├── UnsupportedMediaType   415  not OTLP protobuf or JSON, or an unknown Content-Encoding
├── BodyTooLarge           413  compressed or decompressed body over ``max_body_bytes``
└── Unavailable            503  nothing was stored; the caller may retry after ``retry_after_s``
    ├── Overloaded              the write queue is full
    ├── StorageFailed           SQLite refused: disk full, file corrupted, ...
    └── SearchTimeout           a search that no index serves took too long (no partial answers)
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of everything the store raises on purpose. ``status`` is the HTTP status it becomes."""

    status = 500
    reason = "internal"


class BadRequest(StoreError):
    status = 400
    reason = "malformed"


class TraceNotFound(StoreError):
    status = 404
    reason = "not_found"


class UnsupportedMediaType(StoreError):
    status = 415
    reason = "media_type"


class BodyTooLarge(StoreError):
    status = 413
    reason = "too_large"


class Unavailable(StoreError):
    status = 503
    reason = "unavailable"
    retry_after_s = 1


class Overloaded(Unavailable):
    reason = "queue_full"


class StorageFailed(Unavailable):
    reason = "storage"
    retry_after_s = 5


class SearchTimeout(Unavailable):
    reason = "search_timeout"
