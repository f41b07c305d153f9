"""Searches for traces, in TraceQL.

All but two keep to the one spanset filter that kvpath's own store speaks as well; :data:`NEED_TEMPO` names the two.
"""

from __future__ import annotations

from connector import names

_SPAN_OF_STAGE = {  # notify and deliver are times between spans
    "route": names.SPAN_ROUTE,
    "prefill_queue": names.SPAN_PREFILL_QUEUE,
    "prefill": names.SPAN_PREFILL_COMPUTE,
    "rendezvous": names.SPAN_RENDEZVOUS,
    "handshake": names.SPAN_HANDSHAKE,
    "prepare": f"({names.SPAN_WRITE}|{names.SPAN_READ}){names.SUFFIX_PREPARE}",
    "submit": f"({names.SPAN_WRITE}|{names.SPAN_READ}){names.SUFFIX_SUBMIT}",
    "flight": f"({names.SPAN_WRITE}|{names.SPAN_READ}){names.SUFFIX_FLIGHT}",
    "first_step": names.SPAN_FIRST_STEP,
}
STAGE_CHOICES = tuple(f"{stage} : {span}" for stage, span in _SPAN_OF_STAGE.items())  # Grafana: shown : value

_MODE = f'span.{names.ATTR_MODE} =~ "$mode"'
_SLOW = "duration > $slower"
_ON_ENGINE = f'span.{names.ATTR_ENGINE_ID} =~ "$engine"'


def _where(*conditions: str) -> str:
    return f"{{ {' && '.join(conditions)} }}"


def _named(span: str) -> str:
    return f'name = "{span}"'


def _is(attribute: str, value: str) -> str:
    return f'span.{attribute} = "{value}"'


def _is_not(attribute: str, value: str) -> str:
    return f'span.{attribute} != "{value}"'


REQUESTS = _where("kind = server", f'resource.service.name = "{names.SERVICE_ROUTER}"', _MODE, _SLOW)
STAGES = _where('name =~ "$stage"', _MODE, _SLOW)
ERRORS = _where("status = error", _MODE)
REGISTRATION_LAST = _where(
    _named(names.SPAN_RENDEZVOUS), _is(names.ATTR_LAST_ARRIVAL, names.LAST_ARRIVAL_REGISTRATION), _SLOW
)
LEASES_EXPIRED = _where(
    _named(names.SPAN_BLOCKS_HELD),
    _is(names.ATTR_RELEASE_REASON, names.RELEASE_LEASE_EXPIRED),
    f'resource.service.name = "{names.SERVICE_PREFILL}"',
)
HALF_KNOWN = _where(f"span.{names.ATTR_INCOMPLETE} != nil", _MODE)
FALLBACKS = _where(f"span.{names.ATTR_FALLBACK} != nil")
NOT_REUSED = _where(
    _named(names.SPAN_REUSE_LOOKUP),
    _is_not(names.ATTR_REUSE_OUTCOME, names.REUSE_HIT),
    _is_not(names.ATTR_REUSE_OUTCOME, names.REUSE_MISS),
)
ON_HOST = _where('resource.service.name =~ "$service"', 'resource.host.name =~ "$host"', _MODE, _SLOW)
ON_ENGINE = _where(_ON_ENGINE, 'name =~ "$stage"', _MODE, _SLOW)

# D's leg ended well and there is no first step under it: D's spans were lost. `!<` keeps what is not a parent.
_DECODED = _where(_named(names.SPAN_LEG_DECODE), _is_not(names.ATTR_MODE, names.MODE_PLAIN), _MODE, "status != error")
INCOMPLETE = f"{_where(_named(names.SPAN_FIRST_STEP))} !< {_DECODED}"
COMPLETIONS_MISSING = _where(
    _named(names.SPAN_AWAIT), f"span.{names.ATTR_COMPLETION_COUNT} < span.{names.ATTR_COMPLETION_EXPECTED}"
)
NEED_TEMPO = (INCOMPLETE, COMPLETIONS_MISSING)
