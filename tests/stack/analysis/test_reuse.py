"""How many tokens were reused and computed, and whose word on what was kept holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector import names
from stack.analysis.request import request_spans
from stack.analysis.reuse import PromptTokens, lookup_outcome, prompt_tokens, total_tokens
from stack.analysis.synthetic import Figures, plain_trace, pull_trace, reuse_trace
from stack.analysis.trace import Trace


def changed(trace: Trace, name: str, **attributes: object) -> Trace:
    keys = {"cached": names.ATTR_CACHED_TOKENS, "reused": names.ATTR_EXTERNAL_TOKENS}
    more = {keys[key]: value for key, value in attributes.items()}
    spans = (replace(s, attributes={**s.attributes, **more}) if s.name == name else s for s in trace.spans)
    return Trace(trace.trace_id, tuple(spans))


def test_a_prompt_is_reused_cached_and_computed():
    trace = reuse_trace(Figures(prompt_tokens=640, reused_tokens=512))
    assert prompt_tokens(request_spans(trace)) == PromptTokens(512, 0, 128)
    warm = changed(trace, names.SPAN_PREFILL_COMPUTE, cached=600, reused=512)
    tokens = prompt_tokens(request_spans(warm))
    assert tokens == PromptTokens(512, 88, 40)
    assert tokens.prompt == 640


@pytest.mark.parametrize("cached", [None, "96", -1, True])
def test_what_p_does_not_say_is_unknown(cached):
    trace = changed(pull_trace(), names.SPAN_PREFILL_COMPUTE, cached=cached)
    assert prompt_tokens(request_spans(trace)) is None


def test_a_prompt_that_d_computed_alone_says_nothing_of_p():
    assert prompt_tokens(request_spans(plain_trace())) is None


@pytest.mark.parametrize("outcome", names.REUSE_OUTCOMES)
def test_the_outcome_of_the_lookup(outcome):
    assert lookup_outcome(request_spans(reuse_trace(outcome=outcome))) == outcome


def test_ps_word_holds_over_the_routers():
    trace = reuse_trace(outcome=names.REUSE_EDITED)
    spans = (
        replace(s, attributes={**s.attributes, names.ATTR_REUSE_OUTCOME: names.REUSE_HIT})
        if s.name == names.SPAN_REUSE_LOOKUP
        else s
        for s in trace.spans
    )
    assert lookup_outcome(request_spans(Trace(trace.trace_id, tuple(spans)))) == names.REUSE_EDITED


def test_other_modes_look_nothing_up():
    assert lookup_outcome(request_spans(pull_trace())) is None


def test_totals_leave_out_what_is_unknown():
    assert total_tokens([None, PromptTokens(1, 2, 3), PromptTokens(10, 20, 30)]) == PromptTokens(11, 22, 33)
    assert total_tokens([None]) is None
