"""What travels with a request so that its spans join one trace.

A :class:`Carrier` is read from ``kv_transfer_params`` (router to engine), rides in the connector metadata
(scheduler to worker) and in the push registration (D to P). Span ids that another process must link to are derived,
not sent: both sides know the trace id, D's request id and the two NIXL agent names, so no message of upstream's
protocol needs a new field on the way back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from opentelemetry.trace import SpanContext, TraceFlags

from connector import names

_TRACEPARENT = re.compile(r"^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})\Z")
_RANDOM_SUFFIX = re.compile(r"-[0-9a-f]{8}\Z", re.IGNORECASE)


class Carrier(NamedTuple):
    """Identity of one request in one engine; a plain tuple, so that metadata stays cheap to pickle.

    ``traceparent`` is the W3C header of the leg's span, or ``""`` when the request is not traced. ``stamp_ns`` is an
    instant (Unix ns) that the sender knows and the receiver needs: on P when prefill finished, on D when blocks were
    allocated; 0 when there is none yet. ``peer`` is the name of the engine whose blocks are offered (reuse), or empty.
    """

    traceparent: str
    mode: str
    request_id: str
    stamp_ns: int = 0
    peer: str = ""

    def parent(self) -> SpanContext | None:
        """The leg's span as a remote parent, or ``None`` when the header is absent or malformed."""
        return parse_traceparent(self.traceparent)

    def at(self, stamp_ns: int) -> Carrier:
        return Carrier(self.traceparent, self.mode, self.request_id, stamp_ns, self.peer)


def from_params(
    params: Mapping[str, Any], engine_request_id: str, default_mode: str, headers: Mapping[str, str] | None = None
) -> Carrier:
    """Reads a carrier from ``kv_transfer_params``; whatever is missing or of the wrong type gets a default."""
    traceparent = params.get(names.PARAM_TRACEPARENT)
    if not isinstance(traceparent, str):
        traceparent = (headers or {}).get(names.HEADER_TRACEPARENT, "")
    mode = params.get(names.PARAM_MODE)
    request_id = params.get(names.PARAM_REQUEST_ID)
    peer = params.get(names.PARAM_INSTANCE)
    return Carrier(
        traceparent,
        mode if mode in names.TRANSFER_MODES else default_mode,
        request_id if isinstance(request_id, str) else engine_request_id,
        0,
        peer if isinstance(peer, str) else "",
    )


def parse_traceparent(header: str) -> SpanContext | None:
    """Parses a W3C ``traceparent``; ``None`` when it is not one."""
    match = _TRACEPARENT.match(header)
    if match is None:
        return None
    context = SpanContext(int(match[1], 16), int(match[2], 16), True, TraceFlags(int(match[3], 16)))
    return context if context.is_valid else None


def base_request_id(engine_request_id: str) -> str:
    """vLLM's request id without the random suffix by which the ids of P and D differ."""
    return _RANDOM_SUFFIX.sub("", engine_request_id)


def derived_span_id(trace_id: int, *parts: str) -> int:
    """A span id that every process which knows ``parts`` computes alike; never 0."""
    digest = hashlib.blake2b("\x1f".join(parts).encode(), digest_size=8, key=trace_id.to_bytes(16, "big"))
    return int.from_bytes(digest.digest(), "big") or 1


def compute_span_id(trace_id: int, prefill_engine: str, prefill_request: str) -> int:
    """Id of ``kvpath.prefill.compute``: P's engine id and P's request id, both known to a pulling D."""
    return derived_span_id(trace_id, "compute", prefill_engine, prefill_request)


def register_span_id(trace_id: int, decode_request: str, decode_agent: str) -> int:
    """Id of ``kvpath.register``: D's request id and the NIXL agent that sent the registration."""
    return derived_span_id(trace_id, "register", decode_request, decode_agent)


def write_span_id(trace_id: int, decode_request: str, prefill_agent: str, decode_agent: str) -> int:
    """Id of ``kvpath.write``: D's request id and the agents on both ends."""
    return derived_span_id(trace_id, "write", decode_request, prefill_agent, decode_agent)
