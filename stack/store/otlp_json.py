"""The one difference between OTLP JSON and protobuf's own JSON: ids are hexadecimal, not base64."""

from __future__ import annotations

import base64
from typing import Any

_ID_KEYS = ("traceId", "spanId", "parentSpanId")


def ids_from_hex(message: Any) -> Any:
    """Returns ``message`` (decoded OTLP JSON) with every span's and link's ids in base64.

    Changes ``message`` in place. Raises ``ValueError`` when the nesting is not OTLP's or an id is not hexadecimal.
    """
    try:
        for resource_spans in message.get("resourceSpans", ()):
            for scope_spans in resource_spans.get("scopeSpans", ()):
                for span in scope_spans.get("spans", ()):
                    _convert(span)
                    for link in span.get("links", ()):
                        _convert(link)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"not shaped as resourceSpans/scopeSpans/spans ({error})") from error
    return message


def _convert(holder: dict[str, Any]) -> None:
    for key in _ID_KEYS:
        if key in holder:
            holder[key] = base64.b64encode(bytes.fromhex(holder[key])).decode()
