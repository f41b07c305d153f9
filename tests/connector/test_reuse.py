"""D keeps and P takes back: whole turns on upstream's own schedulers and workers, with real NIXL in one process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from connector import metrics, names
from connector.hooks import SchedulerHooks, WorkerHooks, guarded
from connector.offers import Offers
from connector.receipts import Receipts
from connector.requests import RequestStory
from connector.token_marks import marks_of
from tests.connector.conftest import EngineTelemetry, separate_engines

pytestmark = pytest.mark.usefixtures("vllm")


@pytest.fixture(scope="module")
def telemetry(vllm: Any) -> Iterator[EngineTelemetry]:
    with separate_engines() as telemetry:
        yield telemetry


@pytest.fixture(scope="module")
def r(telemetry: EngineTelemetry) -> Any:
    """The pair's module, which imports vLLM."""
    from tests.connector import reuse_pair

    return reuse_pair


@pytest.fixture(scope="module")
def pair(r: Any, small_model: str) -> Iterator[Any]:
    pair = r.Pair(small_model, kvpath_instance="decode-0")
    yield pair
    pair.close()


def queue_of(telemetry: EngineTelemetry, rid: str) -> Any:
    return [span for span in telemetry.spans(rid) if span.name == names.SPAN_PREFILL_QUEUE][-1].attributes


def test_a_conversation_goes_on_where_d_left_it(r: Any, pair: Any, telemetry: EngineTelemetry) -> None:
    losses = telemetry.losses()
    rid, decode = pair.kept_turn()
    said = pair.kept(rid).json()
    assert said["tokens"] == len(r.PROMPT) + 2, "the KV of the last token is not computed"
    assert 475 < said["expires_in_s"] <= 480
    assert pair.pinned == len(r.D_BLOCKS)

    following = [*r.PROMPT, *r.ANSWER, *range(40)]
    second = "rid-90"
    prefill = pair.prefill(second, following, said["params"])
    assert pair.p.allocate(prefill, r.NEXT_BLOCKS) == 98
    r.upstream.run_until(lambda: prefill.request_id in pair.p.received, pair.p, pair.d)
    pair.same_kv(r.NEXT_BLOCKS, r.D_BLOCKS)
    pair.p.step(prefill.request_id, computed=98)
    pair.p.token(prefill)
    kept, _ = pair.p.finish(prefill, r.NEXT_BLOCKS)
    assert kept, "D is going to read them, as in pull"
    r.upstream.run_until(lambda: decode.request_id in pair.d.sent, pair.p, pair.d)
    assert pair.kept(rid).status_code == 404
    assert pair.pinned == 0

    on_p = {span.name: span for span in telemetry.spans(second)}
    queue, read, compute = (on_p[n] for n in (names.SPAN_PREFILL_QUEUE, names.SPAN_READ, names.SPAN_PREFILL_COMPUTE))
    assert queue.end_time == read.start_time
    assert read.end_time <= compute.start_time
    assert {span.parent.span_id for span in (queue, read, compute)} == {1}
    assert list(read.links) == [], "what is read was made in another trace"
    assert names.SPAN_HANDSHAKE in on_p
    attributes = {name: dict(span.attributes) for name, span in on_p.items()}
    assert attributes[names.SPAN_READ][names.ATTR_PEER_ENGINE_ID] == "decode-0", "its name, not its NIXL id"
    assert attributes[names.SPAN_READ][names.ATTR_PREFILL_REQUEST] == prefill.request_id
    assert attributes[names.SPAN_PREFILL_QUEUE][names.ATTR_REUSE_OUTCOME] == names.REUSE_HIT
    assert attributes[names.SPAN_PREFILL_QUEUE][names.ATTR_REUSE_TOKENS] == 98
    assert attributes[names.SPAN_PREFILL_QUEUE][names.ATTR_REUSE_MATCHED_TOKENS] == 98
    assert attributes[names.SPAN_PREFILL_COMPUTE][names.ATTR_CACHED_TOKENS] == 98
    assert attributes[names.SPAN_PREFILL_COMPUTE][names.ATTR_EXTERNAL_TOKENS] == 98
    assert {each[names.ATTR_MODE] for each in attributes.values()} == {names.MODE_REUSE}

    held = [span for span in telemetry.spans(rid) if span.name == names.SPAN_BLOCKS_HELD]
    engines = {span.attributes[names.ATTR_ENGINE_ID]: span.parent.span_id for span in held}
    assert engines == {"prefill-0": 1, "decode-0": 2}
    assert {span.attributes[names.ATTR_RELEASE_REASON] for span in held} == {names.RELEASE_DONE}
    assert telemetry.losses() == losses


def test_metrics_tell_p_s_read_from_d_s_and_the_blocks_in_between(
    r: Any, pair: Any, telemetry: EngineTelemetry
) -> None:
    for engine in (pair.p, pair.d):
        engine.samples.clear()
    pair.conversation()
    telemetry.losses()  # drains
    pair.p.step()
    pair.d.step()
    stages = {
        side: {
            sample[3] for sample in engine.samples if sample[0] == metrics.STAGE_SECONDS.name and sample[2] == "reuse"
        }
        for side, engine in (("p", pair.p), ("d", pair.d))
    }
    assert stages["p"] >= {"prefill_queue", "reuse_prepare", "reuse_submit", "reuse_flight"}
    assert not stages["p"] & {"prepare", "submit", "flight"}
    assert stages["d"] >= {"prepare", "submit", "flight"}
    assert [metrics.REUSE_TOKENS.name, 98, "reused"] in pair.p.samples
    assert [metrics.REUSE_TOKENS.name, 2, "recomputed"] in pair.p.samples
    assert [sample[1] for sample in pair.d.samples if sample[0] == metrics.BLOCKS_PINNED.name] == [4, 0]
    limits = {sample[1] for sample in pair.d.samples if sample[0] == metrics.BLOCKS_PINNED_LIMIT.name}
    assert limits == {r.pull_of(pair.d.scheduler)._keeper.ledger.capacity}


def test_an_answer_that_is_written_otherwise_still_saves_the_prompt(r: Any, pair: Any) -> None:
    rid, decode = pair.kept_turn()
    prefill = pair.prefill("rid-91", [*r.PROMPT, 7, 77, 9, *range(40)], pair.kept(rid).json()["params"])
    assert pair.p.allocate(prefill, r.NEXT_BLOCKS[:3]) == len(r.PROMPT)
    r.upstream.run_until(lambda: prefill.request_id in pair.p.received, pair.p, pair.d)
    pair.same_kv(r.NEXT_BLOCKS[:3], r.D_BLOCKS[:3])
    r.upstream.run_until(lambda: decode.request_id in pair.d.sent, pair.p, pair.d)
    pair.p.finish(prefill, r.NEXT_BLOCKS, "FINISHED_ABORTED")


def test_p_s_own_cache_comes_first_and_the_rest_is_read_from_the_right_blocks(r: Any, pair: Any) -> None:
    rid, decode = pair.kept_turn()
    prefill = pair.prefill("rid-96", [*r.PROMPT, *r.ANSWER, 1], pair.kept(rid).json()["params"])
    tokens, _ = pair.p.scheduler.get_num_new_matched_tokens(prefill, 32)
    assert tokens == 66
    cached, *missing = (r.upstream.KVCacheBlock(block) for block in r.NEXT_BLOCKS)
    cached._block_hash = b"of an earlier request"
    blocks = r.upstream.KVCacheBlocks(([cached, *missing],))
    pair.p.scheduler.update_state_after_alloc(prefill, blocks, tokens)
    r.upstream.run_until(lambda: prefill.request_id in pair.p.received, pair.p, pair.d)
    pair.same_kv(r.NEXT_BLOCKS[1:], r.D_BLOCKS[1:])
    r.upstream.run_until(lambda: decode.request_id in pair.d.sent, pair.p, pair.d)
    pair.p.finish(prefill, r.NEXT_BLOCKS, "FINISHED_ABORTED")


@pytest.mark.parametrize("edit", ["edited", "shorter"])
def test_a_history_that_is_not_the_same_is_computed_and_d_frees_at_once(
    r: Any, pair: Any, telemetry: EngineTelemetry, edit: str
) -> None:
    losses = telemetry.losses()
    rid, decode = pair.kept_turn()
    prompt = [1, *r.PROMPT[1:], *r.ANSWER] if edit == "edited" else r.PROMPT[:50]
    prefill = pair.prefill("rid-92", prompt, pair.kept(rid).json()["params"])
    assert pair.p.allocate(prefill, r.NEXT_BLOCKS) == 0
    r.upstream.run_until(lambda: decode.request_id in pair.d.sent, pair.p, pair.d)
    pair.p.step(prefill.request_id)
    pair.p.finish(prefill, r.NEXT_BLOCKS, "FINISHED_ABORTED")
    assert queue_of(telemetry, "rid-92")[names.ATTR_REUSE_OUTCOME] == names.REUSE_EDITED
    assert telemetry.losses() == losses


@pytest.mark.parametrize(("tokens", "taken"), [(63, 0), (64, 64), (65, 65)])
def test_fewer_than_64_tokens_are_computed(
    r: Any, pair: Any, telemetry: EngineTelemetry, tokens: int, taken: int
) -> None:
    rid, decode = pair.kept_turn()
    kept = pair.kept(rid).json()["params"] | {names.PARAM_TOKEN_MARKS: marks_of(r.PROMPT, [tokens])}
    prefill = pair.prefill("rid-93", r.PROMPT, kept)
    assert pair.p.allocate(prefill, r.NEXT_BLOCKS[: -(-tokens // 32)]) == taken
    r.upstream.run_until(lambda: decode.request_id in pair.d.sent, pair.p, pair.d)
    r.upstream.run_until(lambda: not taken or prefill.request_id in pair.p.received, pair.p, pair.d)
    pair.p.step(prefill.request_id, computed=taken)
    pair.p.finish(prefill, r.NEXT_BLOCKS, "FINISHED_ABORTED")
    outcome = names.REUSE_HIT if taken else names.REUSE_TOO_SHORT
    assert queue_of(telemetry, "rid-93")[names.ATTR_REUSE_OUTCOME] == outcome


def test_p_reads_once_even_if_it_is_scheduled_again(r: Any, pair: Any) -> None:
    """Preempted, or after a READ that failed. Upstream alone would wait for a second READ that nobody starts."""
    rid, decode = pair.kept_turn()
    prefill = pair.prefill("rid-94", [*r.PROMPT, *r.ANSWER, 1], pair.kept(rid).json()["params"])
    assert pair.p.allocate(prefill, r.NEXT_BLOCKS) == 98
    assert pair.p.scheduler.get_num_new_matched_tokens(prefill, 0) == (0, False)
    r.upstream.run_until(lambda: prefill.request_id in pair.p.received, pair.p, pair.d)
    pair.p.finish(prefill, r.NEXT_BLOCKS, "FINISHED_ABORTED")
    r.upstream.run_until(lambda: decode.request_id in pair.d.sent, pair.p, pair.d)


def test_an_abort_during_the_read_frees_p_s_blocks_when_it_has_ended(
    r: Any, pair: Any, telemetry: EngineTelemetry
) -> None:
    rid, decode = pair.kept_turn()
    prefill = pair.prefill("rid-95", [*r.PROMPT, *r.ANSWER, 1], pair.kept(rid).json()["params"])
    assert pair.p.allocate(prefill, r.NEXT_BLOCKS) == 98
    hooks = pair.p.scheduler.scheduler_hooks
    assert hooks.reading == {prefill.request_id}
    pair.p.finish(prefill, r.NEXT_BLOCKS, "FINISHED_ABORTED")
    assert names.SPAN_BLOCKS_HELD not in {span.name for span in telemetry.spans("rid-95")}
    r.upstream.run_until(lambda: prefill.request_id in pair.p.received, pair.p, pair.d)
    (held,) = [span for span in telemetry.spans("rid-95") if span.name == names.SPAN_BLOCKS_HELD]
    assert held.attributes[names.ATTR_RELEASE_REASON] == names.RELEASE_ABORTED
    assert held.end_time > held.start_time
    assert hooks.reading == set()
    r.upstream.run_until(lambda: decode.request_id in pair.d.sent, pair.p, pair.d)


# --- what D keeps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "params", "status"),
    [
        ("pull", {}, "FINISHED_STOPPED"),
        ("reuse", {names.PARAM_KEEP: False}, "FINISHED_STOPPED"),
        ("reuse", {}, "FINISHED_ABORTED"),
    ],
)
def test_d_keeps_nothing_that_cannot_be_continued(
    r: Any, pair: Any, mode: str, params: dict[str, Any], status: str
) -> None:
    rid, decode = pair.first_turn(mode, **params)
    pair.say(decode, r.ANSWER)
    assert pair.finish(decode, status) == (False, None)
    assert r.forgotten(pair, decode)
    assert pair.kept(rid).status_code == 404
    hooks = pair.d.scheduler.scheduler_hooks
    assert (hooks.carriers, hooks.resting) == ({}, {})


@pytest.mark.parametrize("what", ["mm_features", "lora_request", "cache_salt"])
def test_d_keeps_nothing_that_tokens_alone_do_not_tell(r: Any, pair: Any, what: str) -> None:
    _, decode = pair.first_turn()
    pair.say(decode, r.ANSWER)
    setattr(decode, what, [object()])
    assert pair.finish(decode) == (False, None)


def test_a_request_that_ends_before_d_allocates_lets_p_go(r: Any, pair: Any) -> None:
    rid, prefill, answered = pair.prefilled()
    decode = pair.request(f"cmpl-{rid}-0-bbbbbbbb", r.PROMPT, {**answered, **r.upstream.legs(rid, "reuse", 2)})
    pair.d.receive(decode)
    assert pair.finish(decode, "FINISHED_ABORTED") == (False, None)
    r.upstream.run_until(lambda: prefill.request_id in pair.p.sent, pair.p, pair.d)
    hooks = pair.d.scheduler.scheduler_hooks
    assert (hooks.carriers, hooks.resting) == ({}, {})


def test_d_keeps_no_more_than_its_share(r: Any, telemetry: EngineTelemetry, small_model: str) -> None:
    pair = r.Pair(small_model, kvpath_kept_share=0.25)  # of 16 blocks
    rid, _ = pair.kept_turn()
    _, another = pair.first_turn()
    pair.say(another, r.ANSWER)
    assert pair.finish(another) == (False, None)
    assert r.forgotten(pair, another)
    assert pair.kept(rid).status_code == 200
    pair.close()


def test_blocks_that_nobody_asks_for_are_freed_when_their_time_is_over(
    r: Any, telemetry: EngineTelemetry, small_model: str
) -> None:
    pair = r.Pair(small_model, decoder_kv_blocks_ttl=1)
    rid, decode = pair.kept_turn()
    assert pair.kept(rid).status_code == 200
    started = time.monotonic()
    r.upstream.run_until(lambda: decode.request_id in pair.d.sent, pair.d)
    assert time.monotonic() - started < 5
    assert pair.kept(rid).status_code == 404
    assert pair.pinned == 0
    held = [span for span in telemetry.spans(rid) if span.name == names.SPAN_BLOCKS_HELD][-1]
    assert (held.attributes or {})[names.ATTR_RELEASE_REASON] == names.RELEASE_LEASE_EXPIRED
    assert held.status.is_unset, "that nobody came back is no failure"
    assert not [sample for sample in pair.d.samples if sample[0] == metrics.LEASES_EXPIRED.name]
    pair.close()


def test_a_restarted_d_is_another_engine_and_p_computes(r: Any, telemetry: EngineTelemetry, small_model: str) -> None:
    """P knows the D of before: its agent, its memory. What it offered must not be read from the D that is there now."""
    pair = r.Pair(small_model)
    rid, _ = pair.kept_turn()
    kept = pair.kept(rid).json()["params"]
    pair.d.close()
    pair.d = pair.engine("kv_consumer", "decode-boot-2", pair.port, kvpath_kept_port=0)
    assert pair.kept(rid).status_code == 404, "what the router hears"
    prefill = pair.prefill("rid-95", [*r.PROMPT, *r.ANSWER, 1], kept)
    assert pair.p.allocate(prefill, r.NEXT_BLOCKS) == 98
    ended = (pair.p.failed, pair.p.received)  # before vLLM 0.32 a worker reports a failure as received
    r.upstream.run_until(lambda: any(prefill.request_id in each for each in ended), pair.p, pair.d)
    assert pair.p.scheduler.get_num_new_matched_tokens(prefill, 0) == (0, False), "vLLM schedules it to be computed"
    pair.p.step(prefill.request_id)
    pair.p.finish(prefill, r.NEXT_BLOCKS, "FINISHED_ABORTED")
    reads = [span for span in telemetry.spans("rid-95") if span.name == names.SPAN_READ]
    assert not [span for span in reads if span.status.is_ok or span.status.is_unset]
    pair.conversation()
    pair.close()


# --- the switch, and engines without reuse ----------------------------------------------------------------------


def test_the_switch_serves_reuse_with_its_pull_child(r: Any, telemetry: EngineTelemetry, small_model: str) -> None:
    pair = r.Pair(small_model, switch=True)
    pair.conversation()
    _, decode = pair.first_turn("pull")
    pair.say(decode, r.ANSWER)
    assert pair.finish(decode) == (False, None)
    pair.close()


def test_an_engine_without_the_flag_keeps_nothing_and_takes_nothing(
    r: Any, telemetry: EngineTelemetry, small_model: str
) -> None:
    for role in ("kv_producer", "kv_consumer"):
        scheduler = scheduler_of(r, small_model, role, kvpath_kept_port=0)
        assert scheduler._keeper is None
        assert scheduler._service is None
        offer = {"do_remote_decode": True, "remote_block_ids": [[1]], "remote_num_tokens": 96, "remote_engine_id": "d"}
        where = {"remote_request_id": "r", "remote_host": "127.0.0.1", "remote_port": 1}
        params = {**offer, **where, **r.upstream.legs("rid-1", "reuse", 1)}
        request = r.upstream.new_request("cmpl-rid-1-0-aaaaaaaa", params)
        scheduler.on_new_request(request)
        assert scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
        scheduler.shutdown()


def test_kv_that_is_not_all_there_is_not_reused(
    r: Any, telemetry: EngineTelemetry, small_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sliding window keeps the end of a sequence only: a shorter prefix cannot be cut out of it."""
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec

    spec = SlidingWindowSpec(
        block_size=32, num_kv_heads=3, head_size=64, dtype=r.upstream.torch.float32, sliding_window=64
    )
    config = KVCacheConfig(16, [], [KVCacheGroupSpec(list(r.upstream.LAYERS), spec)])
    monkeypatch.setattr(r.upstream, "kv_cache_config", lambda: config)
    scheduler = scheduler_of(r, small_model, "kv_consumer", bidirectional_kv_xfer=True, kvpath_kept_port=0)
    assert scheduler._keeper is None
    assert scheduler._desk is None
    scheduler.shutdown()


def scheduler_of(r: Any, model: str, role: str, **options: Any) -> Any:
    config = r.upstream.vllm_config(model, "TracedPullConnector", "connector.nixl", role, f"one-{role}", **options)
    return r.upstream.make_connector(config, r.upstream.KVConnectorRole.SCHEDULER)


# --- telemetry that is broken -----------------------------------------------------------------------------------


def boom(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("telemetry is broken")


HOOKS = [
    *((SchedulerHooks, name) for name in ("new_request", "offered", "allocated", "attach", "finished")),
    (WorkerHooks, "_start"),
]
HANDLERS = [
    *((RequestStory, name) for name in ("prefill_offered", "prefill_reads", "prefill_scheduled", "blocks_pinned")),
    *((Receipts, name) for name in ("read_wanted", "finished")),
    *((Offers, name) for name in ("held", "read", "released")),
]


@pytest.mark.parametrize(("owner", "name"), [*HOOKS, *HANDLERS], ids=lambda value: getattr(value, "__name__", value))
def test_telemetry_that_raises_changes_no_turn(
    pair: Any, telemetry: EngineTelemetry, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    before = telemetry.errors
    monkeypatch.setattr(owner, name, guarded(boom) if (owner, name) in HOOKS else boom)
    pair.conversation()
    assert telemetry.errors > before
