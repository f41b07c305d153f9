"""Tempo's trace-by-id answers, in its JSON (protobuf's own mapping: ids in base64, enums by name) or protobuf."""

from __future__ import annotations

import json
import re
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from stack.store.errors import BadRequestError

PROTOBUF = "application/protobuf"
JSON = "application/json"


def trace_id_from(text: str) -> bytes:
    """Reads a trace id of 1 to 32 hexadecimal digits, padded with zeros on the left; raises BadRequestError."""
    if not re.fullmatch(r"[0-9a-fA-F]{1,32}", text):
        raise BadRequestError(f"{text!r} is not a trace id: up to 32 hexadecimal digits")
    return bytes.fromhex(text.zfill(32))


def wants_protobuf(accept: str) -> bool:
    """Returns whether an Accept header asks for protobuf; JSON is the default."""
    return PROTOBUF in accept


def body_v1(traces: TracesData, protobuf: bool) -> bytes:
    """Returns the body of ``/api/traces/{id}``: ``{"batches": [...]}`` or tempopb.Trace, which is TracesData."""
    if protobuf:
        return traces.SerializeToString()
    return _json({"batches": MessageToDict(traces).get("resourceSpans", [])})


def body_v2(traces: TracesData, protobuf: bool) -> bytes:
    """Returns the body of ``/api/v2/traces/{id}``: the trace inside a tempopb.TraceByIDResponse (field 1)."""
    if protobuf:
        trace = traces.SerializeToString()
        return b"\x0a" + _varint(len(trace)) + trace
    return _json({"trace": MessageToDict(traces), "metrics": {}})


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
