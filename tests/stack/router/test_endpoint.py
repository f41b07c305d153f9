"""Faults of engines and clients over real sockets: every one ends with its own status, all spans, and no load left."""

from __future__ import annotations

import asyncio
import json

import pytest

from connector import names
from stack.router import endpoint
from stack.router.settings import DECODE, PREFILL
from stack.router.stub_engine import Reply, StubEngine

PUSH = {names.HEADER_MODE: names.MODE_PUSH}
PULL = {names.HEADER_MODE: names.MODE_PULL}
PLAIN = {names.HEADER_MODE: names.MODE_PLAIN}


def in_flight(stub: StubEngine) -> bool:
    return stub.in_flight == 1


def idle(stub: StubEngine) -> bool:
    return stub.in_flight == 0


@pytest.mark.parametrize("status", [400, 503])
@pytest.mark.parametrize("failing", [PREFILL, DECODE])
@pytest.mark.parametrize("stream", [True, False])
async def test_push_first_failure_ends_the_request_with_its_own_status(
    router, prefill, decode, consistent, status, failing, stream
):
    first, other = (prefill, decode) if failing == PREFILL else (decode, prefill)
    other.reply = Reply(hold=asyncio.Event())  # would wait for ever
    first.choose_reply = lambda _: Reply(status=status, headers={"retry-after": "7"}, hold=reached)
    reached = asyncio.Event()
    asking = asyncio.create_task(router.complete(PUSH, stream=stream))
    await other.until(in_flight)
    reached.set()
    response = await asking
    assert response.status_code == status
    assert response.json() == {"error": {"message": f"stub {first.engine_id}", "code": status}}
    assert response.headers["retry-after"] == "7"
    await other.until(idle)
    assert other.aborted == 1
    spans = await router.spans()
    consistent(spans, str(status))
    errors = {span.name: span.attributes.get("error.type") for span in spans if span.name.startswith("kvpath.leg")}
    mine, theirs = names.SPAN_LEG_PREFILL, names.SPAN_LEG_DECODE
    if failing == DECODE:
        mine, theirs = theirs, mine
    assert errors == {mine: str(status), theirs: "cancelled"}


async def test_push_prefill_failure_after_decodes_headers_still_has_its_own_status(router, prefill, decode):
    # A real engine sends its head at once, long before the KV cache and the first token are there.
    prefill.reply = Reply(status=503, hold=asyncio.Event())
    decode.reply = Reply(hold_body=asyncio.Event())
    asking = asyncio.create_task(router.complete(PUSH, stream=True))
    await decode.until(in_flight)
    prefill.reply.hold.set()
    assert (await asking).status_code == 503
    await decode.until(idle)


@pytest.mark.parametrize("failing", [PREFILL, DECODE])
async def test_a_leg_that_is_reset_gives_502(router, prefill, decode, consistent, mode, failing):
    (prefill if failing == PREFILL else decode).reply = Reply(drop=True)
    other = decode if failing == PREFILL else prefill
    other.reply = Reply(hold=asyncio.Event()) if mode == PUSH else Reply()
    response = await router.complete(mode)
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "upstream_broken"
    await other.until(idle)
    consistent(await router.spans(), "upstream_broken")


@pytest.mark.parametrize("failing", [PREFILL, DECODE])
async def test_a_leg_that_never_answers_is_bounded_by_the_deadline(start, prefill, decode, consistent, mode, failing):
    silent = prefill if failing == PREFILL else decode
    silent.reply = Reply(hold=asyncio.Event())
    if mode == PUSH:  # without P's KV cache D has nothing to say
        decode.reply = Reply(hold=asyncio.Event())
    async with start(prefill, decode, deadline_s=0.7) as router:  # in pull P must have answered by then
        response = await router.complete(mode)
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "deadline_exceeded"
        await silent.until(idle)
        assert silent.aborted == 1
        spans = await router.spans()
        consistent(spans, "deadline_exceeded")
        assert await router.metric('kvpath_router_errors_total{type="deadline_exceeded"}') == 1


@pytest.mark.parametrize("fault", ["fails", "never answers"])
async def test_push_once_decode_has_its_first_token_prefill_no_longer_matters(
    router, prefill, decode, client_stream, monkeypatch, fault
):
    monkeypatch.setattr(endpoint, "REAP_GRACE_S", 0)
    prefill.reply = Reply(status=500, hold=asyncio.Event())
    decode.reply = Reply(tokens=3, pause_at=1, resume=asyncio.Event())
    async with client_stream(router, headers=PUSH) as reader:
        await asyncio.wait_for(reader.readuntil(b" word"), 5)
        if fault == "fails":
            prefill.reply.hold.set()
            await prefill.until(idle)
        decode.reply.resume.set()
        await asyncio.wait_for(reader.readuntil(b"[DONE]\n\n\r\n0\r\n\r\n"), 5)
        await prefill.until(idle)
        spans = await router.spans()
    errors = {span.name: span.attributes.get("error.type") for span in spans}
    assert errors["text_completion"] is None
    assert errors[names.SPAN_LEG_DECODE] is None
    assert errors[names.SPAN_LEG_PREFILL] == ("500" if fault == "fails" else "cancelled")


async def test_an_engine_that_is_gone_gives_502_then_503_until_it_is_back(router, decode, consistent):
    await decode.stop()
    first = await router.complete(PLAIN)
    assert (first.status_code, first.json()["error"]["code"]) == (502, "connect_error")
    second = await router.complete(PLAIN)
    assert (second.status_code, second.headers["retry-after"]) == (503, "1")
    assert second.json()["error"]["code"] == "no_healthy_engine"
    ready = await router.client.get("/ready")
    assert ready.status_code == 503
    assert "no healthy decode engine for mode push (D0:" in str(ready.json()["reasons"])
    await decode.start()
    async with asyncio.timeout(5):
        while (await router.client.get("/ready")).status_code != 200:
            pass
    assert (await router.complete(PUSH)).status_code == 200


async def test_200_with_an_empty_body_is_an_error(router, decode, consistent):
    decode.reply = Reply(body=b"")
    assert (await router.complete(PLAIN)).status_code == 502
    decode.reply = Reply(raw=[])
    assert (await router.complete(PLAIN, stream=True)).status_code == 502


async def test_a_failure_after_the_first_byte_is_an_event_of_the_stream(router, decode, events, consistent, mode):
    decode.reply = Reply(tokens=10, cut_at=3, pause_at=3, resume=asyncio.Event())
    decode.reply.resume.set()
    response = await router.complete(mode, stream=True)
    assert response.status_code == 200
    *_, last = events(response.text)
    assert last["error"]["code"] == "upstream_broken"
    server = consistent(await router.spans(), "upstream_broken")
    assert server.status.status_code.name == "ERROR"
    assert [event.name for event in server.events] == [names.EVENT_FIRST_TOKEN]


async def test_a_stream_without_its_end_is_an_error(router, decode, events, consistent):
    decode.reply = Reply(raw=[b'data: {"choices":[{"text":"a"}]}\n\n', b'data: {"cho'])
    response = await router.complete(PLAIN, stream=True)
    assert '"error"' in response.text.rsplit("\n\ndata: ", 1)[1]
    consistent(await router.spans(), "upstream_broken")


async def test_an_error_event_of_the_engine_passes_and_marks_the_span(router, decode, consistent):
    parts = [b'data: {"choices":[{"text":"a"}]}\n\n', b'data: {"error": {"message": "x"}}\n\n', b"data: [DONE]\n\n"]
    decode.reply = Reply(raw=parts)
    response = await router.complete(PLAIN, stream=True)
    assert response.content == b"".join(parts)
    consistent(await router.spans(), "stream_error")


@pytest.mark.parametrize("moment", ["prefill", "transfer", "stream"])
async def test_a_client_that_leaves_leaves_nothing_in_flight(
    router, prefill, decode, client_stream, consistent, caplog, mode, moment
):
    held = asyncio.Event()
    if moment == "prefill":
        prefill.reply = Reply(hold=held)
        decode.reply = Reply(hold_body=held)
    elif moment == "transfer":
        decode.reply = Reply(hold_body=held)
    else:
        decode.reply = Reply(tokens=500, pause_at=20, resume=held)
    async with client_stream(router, headers=mode) as reader:
        await (prefill if moment == "prefill" else decode).until(in_flight)
        if moment == "stream":
            await reader.readuntil(b" word")
    await decode.until(idle)
    if moment == "prefill" and names.MODE_PUSH in mode.values():
        assert not idle(prefill)  # D frees the blocks it has registered only when P has written into them
        held.set()
    await prefill.until(idle)
    spans = await router.spans()
    consistent(spans, "client_disconnected")
    assert len(spans) <= 6
    assert router.idle
    assert "detach" not in caplog.text
    assert await router.metric('kvpath_router_errors_total{type="client_disconnected"}') == 1
    assert await router.metric("kvpath_router_requests_in_flight") == 0


async def test_a_client_that_leaves_while_it_sends_its_body_is_accounted_for(router, consistent):
    _, writer = await asyncio.open_connection("127.0.0.1", router.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    consistent(await router.spans(), "client_disconnected")


async def test_a_stale_connection_is_replaced_without_the_client_noticing(router, prefill, decode, mode):
    assert (await router.complete(mode)).status_code == 200
    for stub in (prefill, decode):  # closes any kept connection just as a second request comes in on it
        stub.choose_reply = lambda request: Reply(drop=request.nth > 1)
    response = await router.complete(mode)
    assert response.status_code == 200
    assert await router.metric("kvpath_router_upstream_retries_total") >= 1


async def test_a_new_connection_that_breaks_is_not_tried_again(start, decode):
    # With this keep-alive no connection is ever reused.
    async with start(decode, default_mode=names.MODE_PLAIN, keepalive_s=1e-9, health_interval_s=60) as router:
        decode.reply = Reply(drop=True)
        assert (await router.complete(PLAIN)).status_code == 502
        assert await router.metric("kvpath_router_upstream_retries_total") == 0
        assert len(decode.requests) == 1


@pytest.mark.parametrize(
    "partial", [b"H", b"HTTP/1.1 200 OK\r\ncontent-ty", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n"]
)
async def test_a_head_that_has_begun_is_not_tried_again(start, decode, partial):
    async with start(decode, default_mode=names.MODE_PLAIN, health_interval_s=60) as router:
        assert (await router.complete(PLAIN)).status_code == 200
        decode.choose_reply = lambda request: Reply(partial=partial if request.nth > 1 else b"")
        assert (await router.complete(PLAIN)).status_code == 502
        assert await router.metric("kvpath_router_upstream_retries_total") == 0
        assert len(decode.requests) == 2


async def test_an_answer_that_has_begun_is_not_tried_again(start, decode):
    async with start(decode, default_mode=names.MODE_PLAIN, health_interval_s=60) as router:
        assert (await router.complete(PLAIN)).status_code == 200
        decode.reply = Reply(tokens=4, cut_at=0)  # the head is sent on a reused connection, then it breaks
        assert (await router.complete(PLAIN, stream=True)).status_code == 502
        assert await router.metric("kvpath_router_upstream_retries_total") == 0
        assert len(decode.requests) == 2


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"{", 400), (b"[1]", 400), (b'"x"', 400), (b"[" * 100_000, 400), (b'{"a":"' + b"x" * 2000 + b'"}', 413)],
)
async def test_bodies_that_make_no_sense_are_refused(start, decode, consistent, content, status):
    limit = 200_000 if status == 400 else 1000
    async with start(decode, default_mode=names.MODE_PLAIN, max_body_bytes=limit) as router:
        response = await router.client.post("/v1/completions", content=content)
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"
        server = consistent(await router.spans(), "bad_request")
        assert server.attributes[names.ATTR_MODE] == names.MODE_NONE
        assert await router.metric(f'kvpath_router_requests_total{{mode="none",status="{status}"}}') == 1
        assert decode.requests == []


async def test_an_unknown_mode_is_refused_and_a_forbidden_header_is_ignored(start, prefill, decode, consistent):
    async with start(prefill, decode) as router:
        assert (await router.complete({names.HEADER_MODE: "teleport"})).status_code == 400
        server = consistent(await router.spans(), "bad_request")
        assert server.attributes[names.ATTR_MODE] == names.MODE_NONE
    async with start(prefill, decode, allow_mode_header=False, default_mode=names.MODE_PULL) as router:
        assert (await router.complete(PUSH)).headers[names.HEADER_MODE] == names.MODE_PULL


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_passes_byte_for_byte_with_few_spans_and_its_usage(router, decode, consistent, path, mode):
    body = {"prompt": "p", "messages": [], "max_tokens": 500, "stream": True, "model": "m"}
    body["stream_options"] = {"include_usage": True}
    response = await router.client.post(path, json=body, headers=mode)
    direct = await router.client.post(f"{decode.settings.url}{path}", json=body)
    assert response.content == direct.content
    assert response.headers["content-type"].startswith("text/event-stream")
    spans = await router.spans()
    assert len(spans) <= 6
    server = consistent(spans)
    assert server.name == ("chat m" if "chat" in path else "text_completion m")
    assert server.attributes[names.ATTR_GEN_AI_OUTPUT_TOKENS] == 500
    assert server.attributes[names.ATTR_GEN_AI_INPUT_TOKENS] == 7
    (first,) = server.events
    assert server.start_time < first.timestamp < server.end_time


async def test_the_first_token_reaches_the_client_before_the_second_exists(router, decode, client_stream, mode):
    decode.reply = Reply(tokens=3, pause_at=1, resume=asyncio.Event())
    async with client_stream(router, headers=mode) as reader:
        await asyncio.wait_for(reader.readuntil(b" word"), 5)
        decode.reply.resume.set()
        await asyncio.wait_for(reader.readuntil(b"[DONE]"), 5)


async def test_many_requests_at_once_keep_their_answers_apart(router, decode, mode):
    decode.choose_reply = lambda request: Reply(body=json.dumps({"echo": request.body["prompt"]}).encode())
    answers = await asyncio.gather(*(router.complete(mode, prompt=f"p{i}") for i in range(40)))
    assert [answer.json()["echo"] for answer in answers] == [f"p{i}" for i in range(40)]
    await router.spans(server=40)
    assert router.idle


async def test_authorization_reaches_both_engines_and_no_other_header_does(router, prefill, decode, mode):
    await router.complete({**mode, "authorization": "Bearer k", "cookie": "c=1", "x-data-parallel-rank": "3"})
    for request in prefill.requests + decode.requests:
        assert request.headers["authorization"] == "Bearer k"
        assert not {"cookie", "x-data-parallel-rank"} & set(request.headers)
