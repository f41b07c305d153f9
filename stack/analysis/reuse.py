"""How much of a prompt P had to compute, and what the router found of the turn before. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from connector import names
from stack.analysis.request import RequestSpans
from stack.analysis.trace import Span


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Where the KV of a prompt's tokens came from before D had it: the three add up to the prompt."""

    reused: int  # read back from D
    cached: int  # in P's own prefix cache
    computed: int  # by P, in mode reuse: recomputed

    @property
    def prompt(self) -> int:
        return self.reused + self.cached + self.computed


def prompt_tokens(request: RequestSpans) -> PromptTokens | None:
    """``None`` when P's spans do not say (mode plain, another version of the connector)."""
    compute = request.compute
    if compute is None or request.mode == names.MODE_PLAIN:
        return None
    prompt, there = _count(compute, names.ATTR_PROMPT_TOKENS), _count(compute, names.ATTR_CACHED_TOKENS)
    reused = _count(compute, names.ATTR_EXTERNAL_TOKENS)
    if prompt is None or there is None:
        return None
    reused = min(reused or 0, there)
    return PromptTokens(reused, there - reused, prompt - there)


def total_tokens(several: Iterable[PromptTokens | None]) -> PromptTokens | None:
    """The sum of those that are known; ``None`` when none is."""
    known = [tokens for tokens in several if tokens is not None]
    if not known:
        return None
    return PromptTokens(sum(t.reused for t in known), sum(t.cached for t in known), sum(t.computed for t in known))


def lookup_outcome(request: RequestSpans) -> str | None:
    """What the router found; where P saw it otherwise (edited after all, too short after its own cache), P's word.

    ``None`` where nothing was looked up: another mode, or a request without a conversation.
    """
    for span in (request.queue, request.lookup):
        found = span.attributes.get(names.ATTR_REUSE_OUTCOME) if span is not None else None
        if request.mode == names.MODE_REUSE and isinstance(found, str):
            return found
    return None


def _count(span: Span, key: str) -> int | None:
    value = span.attributes.get(key)
    return value if type(value) is int and value >= 0 else None
