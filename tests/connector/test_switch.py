"""One pair of engines that serves push and pull, with real connectors and real NIXL; and telemetry that is broken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from connector import names
from connector.carrier import compute_span_id
from connector.hooks import SchedulerHooks, WorkerHooks, guarded
from connector.ledger import Ledger
from connector.metrics import Samples
from connector.offers import Offers
from connector.receipts import Receipts
from connector.requests import RequestStory
from connector.tap import TapStory
from connector.worker_story import WorkerStory
from tests.connector.conftest import EngineTelemetry, separate_engines

pytestmark = pytest.mark.usefixtures("vllm")
CHILDREN = [
    {"kv_connector": f"TracedP{mode}Connector", "kv_connector_module_path": "connector.nixl", "kv_buffer_device": "cpu"}
    for mode in ("ush", "ull")
]


@pytest.fixture(scope="module")
def telemetry(vllm: Any) -> Iterator[EngineTelemetry]:
    with separate_engines() as telemetry:
        yield telemetry


@pytest.fixture(scope="module")
def pair(telemetry: EngineTelemetry, small_model: str) -> Iterator[Any]:
    from tests.connector.upstream import EnginePair

    pair = EnginePair(small_model, "SwitchConnector", "connector.switch", connectors=CHILDREN)
    yield pair
    pair.close()


def by_name(spans: list[Any]) -> dict[str, Any]:
    assert len({span.name for span in spans}) == len(spans), [span.name for span in spans]
    return {span.name: span for span in spans}


WRITE_PARTS = {f"kvpath.write.{part}" for part in ("prepare", "submit", "flight")}
READ_PARTS = {f"kvpath.read.{part}" for part in ("prepare", "submit", "flight")}
ON_P = {names.SPAN_PREFILL_QUEUE, names.SPAN_PREFILL_COMPUTE, names.SPAN_BLOCKS_HELD}
PUSH = {
    *(ON_P | WRITE_PARTS),
    *(names.SPAN_RENDEZVOUS, names.SPAN_WRITE, names.SPAN_REGISTER, names.SPAN_AWAIT, names.SPAN_FIRST_STEP),
}
PULL = {*(ON_P | READ_PARTS), names.SPAN_READ, names.SPAN_FIRST_STEP}


def test_both_modes_are_served_and_traced(pair: Any, telemetry: EngineTelemetry) -> None:
    before = telemetry.losses()
    first, pulled = pair.push(), pair.pull()
    late, pulled_again = pair.push(registration_first=False), pair.pull()
    for rid in (first, late):
        spans = by_name([span for span in telemetry.spans(rid) if span.name != names.SPAN_HANDSHAKE])
        assert set(spans) == PUSH
        write, awaiting, register = (spans[name] for name in (names.SPAN_WRITE, names.SPAN_AWAIT, names.SPAN_REGISTER))
        assert [link.context.span_id for link in write.links] == [register.context.span_id]
        assert [link.context.span_id for link in awaiting.links] == [write.context.span_id]
        assert len(awaiting.events) == 1
        assert write.attributes[names.ATTR_BYTES] == 2 * 3 * 3 * 32 * 128 * 4, "layers, blocks, KV of a block"
        assert write.attributes[names.ATTR_DESCRIPTORS] == 6
        assert write.attributes[names.ATTR_PEER_RANK] == 0
        assert spans[names.SPAN_BLOCKS_HELD].attributes[names.ATTR_RELEASE_REASON] == names.RELEASE_DONE
        assert {span.parent.span_id for span in spans.values() if span.name not in WRITE_PARTS} == {1, 2}
    for rid, last in ((first, names.LAST_ARRIVAL_PREFILL), (late, names.LAST_ARRIVAL_REGISTRATION)):
        rendezvous = next(span for span in telemetry.spans(rid) if span.name == names.SPAN_RENDEZVOUS)
        assert (rendezvous.attributes or {})[names.ATTR_LAST_ARRIVAL] == last
    for rid in (pulled, pulled_again):
        spans = by_name([span for span in telemetry.spans(rid) if span.name != names.SPAN_HANDSHAKE])
        assert set(spans) == PULL
        read, compute = spans[names.SPAN_READ], spans[names.SPAN_PREFILL_COMPUTE]
        assert [link.context.span_id for link in read.links] == [compute.context.span_id]
        assert compute.context.span_id == compute_span_id(
            compute.context.trace_id, "prefill-0", read.attributes[names.ATTR_PREFILL_REQUEST]
        )
    handshakes = {
        rid: [span for span in telemetry.spans(rid) if span.name == names.SPAN_HANDSHAKE]
        for rid in (first, pulled, late, pulled_again)
    }
    assert [len(handshakes[rid]) for rid in (first, pulled, late, pulled_again)] == [2, 1, 0, 0]
    assert telemetry.losses() == before, "nothing was lost"


def test_the_pull_child_listens_next_to_the_push_child(pair: Any) -> None:
    for engine, port in zip((pair.p, pair.d), pair.ports, strict=True):
        push, pull = engine.scheduler._connectors
        assert push.connector_scheduler.side_channel_port == port
        assert pull.connector_scheduler.side_channel_port == port + 1


def test_handshake_metadata_of_both_children_travel(pair: Any) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NIXL_CONNECTOR_VERSION

    metadata = pair.p.worker.get_handshake_metadata()
    assert len(metadata.children) == 2
    assert all(metadata.children)
    hashes = {child.compatibility_hash for child in metadata.children}
    if NIXL_CONNECTOR_VERSION >= 7:  # since then the transfer mode is part of the hash
        assert len(hashes) == 2, "push and pull have different compatibility hashes"


@pytest.mark.parametrize("mode", ["push", "pull", "reuse", "plain", "", None, 7, ["push"], {"a": 1}])
def test_a_request_goes_to_the_child_of_its_mode_or_to_none(pair: Any, mode: Any) -> None:
    from tests.connector.upstream import new_request

    request = new_request("r", {names.PARAM_MODE: mode, "do_remote_decode": True})
    expected = {"push": "push", "pull": "pull", "reuse": "pull"}.get(mode) if isinstance(mode, str) else None
    index = pair.p.scheduler._child_of(request)
    assert (None if index is None else pair.p.scheduler._connectors[index].mode) == expected
    pair.p.scheduler.on_new_request(request)
    assert pair.p.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    kept, params = pair.p.finish(request, [1], "FINISHED_ABORTED")
    assert (kept, params) == (False, None)
    pair.p.step()


def test_a_request_without_parameters_is_not_transferred(pair: Any) -> None:
    from tests.connector.upstream import new_request

    request = new_request("r", None)
    pair.d.receive(request)
    assert pair.d.allocate(request, [1]) == 0
    pair.d.token(request)
    pair.d.step("r")
    assert pair.d.finish(request, [1]) == (False, None)


def test_samples_reach_the_statistics_of_both_engines(pair: Any, telemetry: EngineTelemetry) -> None:
    pair.push()
    pair.pull()
    telemetry.losses()
    for engine in (pair.p, pair.d):
        engine.step()
    seen = {(name, *labels) for engine in (pair.p, pair.d) for name, _, *labels in engine.samples}
    assert ("kvpath_transfers", "push", "WRITE", "done") in seen
    assert ("kvpath_transfers", "pull", "READ", "done") in seen
    assert ("kvpath_stage_seconds", "pull", "first_step") in seen
    assert ("kvpath_stage_seconds", "push", "prefill_queue") in seen


# --- telemetry that is broken -----------------------------------------------------------------------------------


def boom(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("telemetry is broken")


SCHEDULER_HOOKS = ("new_request", "allocated", "scheduled", "attach", "finished", "output", "step_ended")
WORKER_HOOKS = ("start", "transfer_results")
TAP_FACTS = [name for name in vars(TapStory) if not name.startswith("_") and name != "failed"]
HANDLERS = [
    *((WorkerStory, name) for name in TAP_FACTS),
    *((Receipts, name) for name in ("staged", "sent", "completed", "read_wanted", "finished")),
    *((Offers, name) for name in ("finished", "registered", "held", "released", "writing", "written", "read")),
    *(
        (RequestStory, name)
        for name in ("prefill_received", "prefill_scheduled", "prefill_finished", "decode_received")
    ),
    *((RequestStory, name) for name in ("decode_allocated", "received", "decode_first_token")),
    (Ledger, "record"),
    (Samples, "take"),
    (Samples, "add"),
]
# With a handshake only, which these engines have behind them.
HANDSHAKE_ONLY = {(WorkerStory, "agent_added"), (WorkerStory, "list_prepared")}


def test_every_public_hook_is_guarded(vllm: Any) -> None:
    for hooks, expected in (
        (SchedulerHooks, (*SCHEDULER_HOOKS, "offered", "pinned")),  # the latter two in mode reuse only
        (WorkerHooks, (*WORKER_HOOKS, "finished")),
    ):
        public = {name for name, value in vars(hooks).items() if callable(value) and not name.startswith("_")}
        assert public == set(expected)
        for name in public - {"transfer_results"}:  # which guards itself: see below
            inner = "_start" if name == "start" else name  # start only looks whether there is anything to do
            assert hasattr(getattr(hooks, inner), "__wrapped__"), name


def test_results_that_are_not_understood_are_counted_and_raise_nothing(vllm: Any) -> None:
    ledger = Ledger()
    WorkerHooks(ledger, None).transfer_results(object())
    assert ledger.losses.errors == 1


@pytest.mark.parametrize("hook", [*SCHEDULER_HOOKS, *WORKER_HOOKS])
def test_a_hook_that_raises_changes_no_request(
    pair: Any, telemetry: EngineTelemetry, vllm: Any, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    hooks = SchedulerHooks if hook in SCHEDULER_HOOKS else WorkerHooks
    if hook == "transfer_results" and not hasattr(KVConnectorBase_V1, "get_transfer_results"):
        hook = "finished"  # before vLLM 0.32
    pair.push()
    pair.pull()
    before = telemetry.errors
    monkeypatch.setattr(hooks, hook, guarded(boom))
    pair.push()
    pair.pull()
    assert telemetry.errors > before


@pytest.mark.parametrize(("owner", "name"), HANDLERS, ids=lambda value: getattr(value, "__name__", value))
def test_telemetry_that_raises_changes_no_request(
    pair: Any, telemetry: EngineTelemetry, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    before = telemetry.errors
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, boom)
        pair.push()
        pair.pull()
        errors = telemetry.errors - before
    assert (errors > 0) != ((owner, name) in HANDSHAKE_ONLY)


def test_the_pair_still_traces_after_all_that(pair: Any, telemetry: EngineTelemetry) -> None:
    assert {span.name for span in telemetry.spans(pair.push())} == PUSH
    assert {span.name for span in telemetry.spans(pair.pull())} == PULL
