"""Push and pull on real engines: right text, whole traces, stages that add up, both orders of the rendezvous."""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import httpx
import pytest
from conftest import MODES, LiveStack, eventually

from connector import names
from stack.analysis.complete import defects
from stack.analysis.critical_path import critical_path
from stack.analysis.trace import Trace
from stack.demo.prompts import demo_prompts


def prompts(stack: LiveStack, count: int) -> list[str]:
    return [prompt.text for prompt in demo_prompts(Path(stack.prefill.model), count)]


def span(trace: Trace, name: str):
    (found,) = [each for each in trace.spans if each.name == name]
    return found


@pytest.fixture(scope="module")
def answers(stack: LiveStack):
    """Four prompts in both modes, interleaved, and without transfer."""
    texts = prompts(stack, 4)
    order = [(mode, text) for i, text in enumerate(texts) for mode in (MODES if i % 2 else MODES[::-1])]
    answered = {(mode, text): stack.ask(mode, text) for mode, text in order}
    plain = {text: stack.ask(names.MODE_PLAIN, text) for text in texts}
    return answered, plain


def test_greedy_text_is_that_of_one_engine_without_transfer(answers) -> None:
    answered, plain = answers
    assert len(answered) == 8
    for (mode, text), answer in answered.items():
        assert answer.text == plain[text].text, mode
    assert len({answer.text for answer in plain.values()}) == len(plain)  # texts that could be told apart


def test_every_request_has_one_complete_trace_that_adds_up(stack: LiveStack, answers) -> None:
    answered, _ = answers
    for (mode, _), answer in answered.items():
        trace = stack.trace(answer.trace_id)
        assert [str(defect) for defect in defects(trace, engine_spans=True)] == []
        path = critical_path(trace)
        assert path.mode == mode
        assert sum(path.stages.values()) + path.unexplained_ns == path.ttft_ns
        assert path.anomalies == ()


def test_unexplained_is_small_and_the_client_agrees(stack: LiveStack, answers) -> None:
    answered, _ = answers
    for mode in MODES:
        paths = {
            answer.trace_id: critical_path(stack.trace(answer.trace_id))
            for (asked, _), answer in answered.items()
            if asked == mode
        }
        assert median(abs(path.unexplained_ns) / path.ttft_ns for path in paths.values()) <= 0.05
        gaps = [
            abs(answer.ttft_ns - paths[answer.trace_id].ttft_ns)
            for (asked, _), answer in answered.items()
            if asked == mode
        ]
        assert median(gaps) <= 5_000_000


def test_prefill_comes_last_when_both_legs_start_together(stack: LiveStack) -> None:
    trace = stack.trace(stack.ask(names.MODE_PUSH, prompts(stack, 6)[5]).trace_id)
    rendezvous = span(trace, names.SPAN_RENDEZVOUS)
    assert rendezvous.attributes[names.ATTR_LAST_ARRIVAL] == names.LAST_ARRIVAL_PREFILL
    assert critical_path(trace).stages["handoff"] == 0


def test_registration_comes_last_when_decode_is_late(stack: LiveStack) -> None:
    """Both legs sent by hand, the decode leg only after P has answered: upstream pairs them all the same."""
    request_id = f"late-registration-{secrets.token_hex(4)}x"  # not to be taken for vLLM's random suffix
    trace_id = secrets.token_hex(16)
    prefill_params = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        names.PARAM_MODE: names.MODE_PUSH,
        names.PARAM_TRACEPARENT: f"00-{trace_id}-{'1' * 16}-01",
        names.PARAM_REQUEST_ID: request_id,
    }
    decode_params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": stack.prefill.engine_id,
        "remote_host": stack.prefill.side_channel_host,
        "remote_port": stack.prefill.side_channel_port,
        "tp_size": 1,
        "remote_request_id": request_id,
        "remote_block_ids": None,
        names.PARAM_MODE: names.MODE_PUSH,
        names.PARAM_TRACEPARENT: f"00-{trace_id}-{'2' * 16}-01",
        names.PARAM_REQUEST_ID: request_id,
    }
    body = {"model": stack.settings.model_name, "prompt": prompts(stack, 1)[0], "temperature": 0}
    headers = {"X-Request-Id": request_id}
    for engine, params, tokens in ((stack.prefill, prefill_params, 1), (stack.decode, decode_params, 8)):
        answer = httpx.post(
            f"{engine.url}/v1/completions",
            json=body | {"max_tokens": tokens, "kv_transfer_params": params},
            headers=headers,
            timeout=60,
            trust_env=False,
        )
        assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"]

    def seen() -> bool:
        trace = stack.trace(trace_id, timeout_s=0)
        return any(each.name == names.SPAN_RENDEZVOUS for each in trace.spans)

    eventually(seen, 15)
    rendezvous = span(stack.trace(trace_id, timeout_s=0), names.SPAN_RENDEZVOUS)
    assert rendezvous.attributes[names.ATTR_LAST_ARRIVAL] == names.LAST_ARRIVAL_REGISTRATION


def test_several_requests_in_flight_keep_apart(stack: LiveStack) -> None:
    texts = prompts(stack, 4)
    alone = {text: stack.ask(names.MODE_PLAIN, text).text for text in texts}
    start = threading.Barrier(8)

    def ask(mode: str, text: str):
        start.wait(10)
        return text, stack.ask(mode, text)

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda pair: ask(*pair), [(mode, text) for text in texts for mode in MODES]))
    for text, answer in done:
        assert answer.text == alone[text]
        assert [str(defect) for defect in defects(stack.trace(answer.trace_id), engine_spans=True)] == []


def test_metrics_count_what_happened(stack: LiveStack) -> None:
    before = {
        name: stack.metric(engine, name, **labels)
        for engine, name, labels in (
            (stack.prefill, "kvpath_rendezvous_total", {}),
            (stack.decode, "kvpath_completions_total", {"mode": names.MODE_PUSH}),
        )
    }
    for _ in range(2):
        stack.ask(names.MODE_PUSH, prompts(stack, 3)[2])

    def counted() -> bool:
        stack.ask(names.MODE_PULL, "Samples travel with the next step.")
        return (
            stack.metric(stack.prefill, "kvpath_rendezvous_total") >= before["kvpath_rendezvous_total"] + 2
            and stack.metric(stack.decode, "kvpath_completions_total", mode=names.MODE_PUSH)
            >= before["kvpath_completions_total"] + 2
        )

    eventually(counted, 20)
    assert stack.metric(stack.prefill, "kvpath_transferred_bytes_total", mode=names.MODE_PUSH, operation="WRITE") > 0
    assert stack.metric(stack.decode, "kvpath_transferred_bytes_total", mode=names.MODE_PULL, operation="READ") > 0
    expected = stack.metric(stack.decode, "kvpath_completions_expected_total", mode=names.MODE_PUSH)
    assert stack.metric(stack.decode, "kvpath_completions_total", mode=names.MODE_PUSH) >= expected > 0
