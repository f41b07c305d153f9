"""Says in one line what is wrong with what a command was given."""

from __future__ import annotations

from pydantic import ValidationError


def one_line(error: Exception) -> str:
    """The error's text; of a ``ValidationError`` without the values, one of which may be a token."""
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors())
    return " ".join(str(error).split())
