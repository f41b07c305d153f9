"""One short request makes an engine step; that it fails is said."""

from __future__ import annotations

import pytest

from connector import names
from stack.experiment.client import RequestError
from stack.experiment.step import PROMPT, step_engine
from stack.router.stub_engine import Reply


def test_an_engine_is_sent_one_token_to_make(deployment):
    deployment.prefill.requests.clear()
    step_engine(deployment.prefill.settings.url, "m")
    (request,) = deployment.prefill.requests
    assert request.headers[names.HEADER_UNCOUNTED] == names.UNCOUNTED_STEP
    assert (request.body["model"], request.body["prompt"], request.body["max_tokens"]) == ("m", PROMPT, 1)


def test_an_engine_that_does_not_answer_is_said(deployment):
    deployment.prefill.reply = Reply(status=503)
    with pytest.raises(RequestError, match="503"):
        step_engine(deployment.prefill.settings.url, "m")
