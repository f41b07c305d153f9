"""The traced connectors against upstream's own: same answers, statistics that survive processes, whole requests."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from connector import names
from connector.carrier import Carrier
from connector.ledger import Ledger
from tests.connector.conftest import EngineTelemetry, separate_engines

pytestmark = pytest.mark.usefixtures("vllm")
RID, P_ID, D_ID = "rid-1", "cmpl-rid-1-0-aaaaaaaa", "cmpl-rid-1-0-bbbbbbbb"
WHERE = {
    "remote_engine_id": "prefill-0",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_request_id": P_ID,
}


@pytest.fixture(scope="module")
def telemetry(vllm: Any) -> Iterator[EngineTelemetry]:
    with separate_engines() as telemetry:
        yield telemetry


def scheduler(model: str, connector: str, role: str, traced: bool, **extra: Any) -> Any:
    from tests.connector import upstream

    name, module = (f"Traced{connector}", "connector.nixl") if traced else (f"Nixl{connector}", None)
    config = upstream.vllm_config(model, name, module, role, f"{role}-{connector}", **extra)
    return upstream.make_connector(config, upstream.KVConnectorRole.SCHEDULER)


def params_of(kind: str, mode: str) -> dict[str, Any]:
    from tests.connector.upstream import legs

    if kind == "prefill":
        return {"do_remote_decode": True, "do_remote_prefill": False, **legs(RID, mode, 1)}
    blocks = None if mode == "push" else [[4, 5, 6]]
    wanted = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": blocks}
    return {**wanted, **WHERE, **legs(RID, mode, 2)}


def without_times(metadata: Any) -> dict[str, Any]:
    """Upstream's metadata as plain data: no clock, no deadlines, nothing of kvpath's."""
    plain = {key: value for key, value in vars(metadata).items() if key not in ("scheduler_clock", "kvpath_carriers")}
    plain["reqs_to_send"] = sorted(metadata.reqs_to_send)
    plain["reqs_to_recv"] = {request: repr(meta) for request, meta in metadata.reqs_to_recv.items()}
    plain["push_registrations"] = {
        request: {key: value for key, value in data.items() if key != names.PARAM_TELEMETRY}
        for request, data in metadata.push_registrations.items()
    }
    plain["heartbeat_by_engine"] = repr(metadata.heartbeat_by_engine)
    return plain


def drive(connector: Any, kind: str, mode: str, end: str) -> list[Any]:
    """Everything that upstream answers along one request's life."""
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import RequestStatus

    from tests.connector.upstream import blocks_of, new_request, scheduled

    request = new_request(P_ID if kind == "prefill" else D_ID, params_of(kind, mode))
    answers: list[Any] = [connector.on_new_request(request)]
    if end != "FINISHED_ABORTED_EARLY":
        tokens = connector.get_num_new_matched_tokens(request, 0)
        answers += [tokens, connector.update_state_after_alloc(request, blocks_of([4, 5, 6]), tokens[0])]
        answers.append(without_times(connector.build_connector_meta(scheduled(request.request_id))))
        answers.append(connector.update_state_after_alloc(request, blocks_of([4, 5, 6]), 0))
        done = {request.request_id} if kind == "decode" else set()
        answers.append(connector.update_connector_output(KVConnectorOutput(finished_recving=done)))
        request.append_output_token_ids(7)
        answers.append(list(connector.take_events()))
    request.status = RequestStatus[end.removesuffix("_EARLY")]
    request.num_computed_tokens = request.num_prompt_tokens
    answers.append(connector.request_finished_all_groups(request, ([4, 5, 6],)))
    answers.append(without_times(connector.build_connector_meta(scheduled())))
    answers.append(connector.has_pending_push_work())
    params = dict(request.kv_transfer_params or {})
    return [*answers, params]


@pytest.mark.parametrize("end", ["FINISHED_LENGTH_CAPPED", "FINISHED_ABORTED", "FINISHED_ABORTED_EARLY"])
@pytest.mark.parametrize("mode", ["push", "pull", "pull-where-reuse-is-served"])
@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_upstreams_answers_are_unchanged(
    telemetry: EngineTelemetry, small_model: str, kind: str, mode: str, end: str
) -> None:
    role = "kv_producer" if kind == "prefill" else "kv_consumer"
    mode, _, reuse = mode.partition("-")
    connector = f"P{mode[1:]}Connector"
    serves = {"bidirectional_kv_xfer": True, **({"kvpath_kept_port": 0} if kind == "decode" else {})} if reuse else {}
    traced = scheduler(small_model, connector, role, traced=True, **serves)
    bare = scheduler(small_model, connector, role, traced=False)
    before = telemetry.errors
    assert drive(traced, kind, mode, end) == drive(bare, kind, mode, end)
    assert telemetry.errors == before
    assert traced.scheduler_hooks.carriers == {}, "nothing is kept of a request that has ended"
    assert traced.scheduler_hooks.before_first_token == {}
    assert traced.scheduler_hooks.unscheduled == traced.scheduler_hooks.reading == set()
    for connector in (traced, bare):
        connector.shutdown()


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_an_aborted_prefill_gives_its_blocks_back_at_once(
    telemetry: EngineTelemetry, small_model: str, mode: str
) -> None:
    traced = scheduler(small_model, f"P{mode[1:]}Connector", "kv_producer", traced=True)
    before = {span.context.span_id for span in telemetry.spans(RID)}
    drive(traced, "prefill", mode, "FINISHED_ABORTED")
    made = [span for span in telemetry.spans(RID) if span.context.span_id not in before]
    (held,) = [span for span in made if span.name == names.SPAN_BLOCKS_HELD]
    assert (held.attributes or {})[names.ATTR_RELEASE_REASON] == names.RELEASE_ABORTED
    assert held.start_time == held.end_time
    traced.shutdown()


def test_registrations_and_metadata_carry_the_trace(telemetry: EngineTelemetry, small_model: str) -> None:
    from tests.connector.upstream import blocks_of, new_request, scheduled

    traced = scheduler(small_model, "PushConnector", "kv_consumer", traced=True)
    request = new_request(D_ID, params_of("decode", "push"))
    traced.on_new_request(request)
    traced.update_state_after_alloc(request, blocks_of([1, 2, 3]), 96)
    metadata = pickle.loads(pickle.dumps(traced.build_connector_meta(scheduled())))
    traceparent = params_of("decode", "push")[names.PARAM_TRACEPARENT]
    sent = {names.PARAM_TRACEPARENT: traceparent, names.PARAM_INSTANCE: "kv_consumer-PushConnector"}
    assert metadata.push_registrations[D_ID][names.PARAM_TELEMETRY] == sent
    (carrier,) = metadata.kvpath_carriers.values()
    assert isinstance(carrier, Carrier)
    assert carrier[:3] == (traceparent, "push", RID)
    assert carrier.stamp_ns > 0, "when D allocated"
    assert not hasattr(traced.build_connector_meta(scheduled()), "kvpath_carriers"), "once"
    traced.shutdown()


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_a_plain_traced_pair_serves_its_mode(telemetry: EngineTelemetry, small_model: str, mode: str) -> None:
    from tests.connector.upstream import EnginePair

    pair = EnginePair(small_model, f"TracedP{mode[1:]}Connector", "connector.nixl")
    spans = telemetry.spans(getattr(pair, mode)())
    assert (names.SPAN_WRITE if mode == "push" else names.SPAN_READ) in {span.name for span in spans}
    pair.close()


# --- statistics -------------------------------------------------------------------------------------------------


def sample(value: float = 1) -> list[Any]:
    return ["kvpath_transfers", value, "push", "WRITE", "done"]


def test_statistics_survive_processes_and_add_up(vllm: Any) -> None:
    first = vllm.TracedStats.from_data({"kvpath_samples": [sample()], "num_failed_transfers": [1]})
    second = pickle.loads(pickle.dumps(vllm.TracedStats.from_data({"kvpath_samples": [sample(2)]})))
    assert not first.is_empty()
    assert vllm.TracedStats().is_empty()
    assert vllm.TracedStats.from_data(None).is_empty()
    total = first.aggregate(second)
    assert total.data["kvpath_samples"] == [sample(), sample(2)]
    rebuilt = vllm.TracedPushConnector.build_kv_connector_stats(dict(total.data))
    assert rebuilt.data == total.data
    assert "Num successful transfers" in rebuilt.reduce()
    total.reset()
    assert total.is_empty()


def prom_metrics(vllm: Any) -> tuple[Any, CollectorRegistry]:
    registry = CollectorRegistry()

    def bound(metric_class: Any) -> Any:
        return lambda **arguments: metric_class(registry=registry, **arguments)

    types = {metric_class: bound(metric_class) for metric_class in (Counter, Gauge, Histogram)}
    config = SimpleNamespace(kv_transfer_config=None)
    build = vllm.TracedPullConnector.build_prom_metrics
    return build(config, types, ["model_name", "engine"], {0: ["m", "0"]}), registry


def test_samples_and_upstreams_metrics_are_exposed_together(vllm: Any) -> None:
    metrics, registry = prom_metrics(vllm)
    stats = vllm.TracedStats.from_data({"num_failed_transfers": [1]})
    stats.data["kvpath_samples"] = [sample(), ["kvpath_stage_seconds", 0.003, "push", "flight"]]
    metrics.observe(stats.data, 0)
    text = generate_latest(registry).decode()
    labels = 'engine="0",mode="push",model_name="m"'
    assert 'kvpath_stage_seconds_bucket{engine="0",le="0.005",mode="push",model_name="m",stage="flight"} 1.0' in text
    assert f'kvpath_transfers_total{{{labels},operation="WRITE",outcome="done"}} 1.0' in text
    assert 'vllm:nixl_num_failed_transfers_total{engine="0",model_name="m"} 1.0' in text


@pytest.mark.parametrize("samples", [[["kvpath_of_the_future", 1]], [["kvpath_transfers", 1]], [7], 7])
def test_samples_that_are_not_understood_leave_upstreams_metrics_alone(vllm: Any, samples: Any) -> None:
    metrics, registry = prom_metrics(vllm)
    stats = vllm.TracedStats.from_data({"num_failed_transfers": [1]})
    stats.data["kvpath_samples"] = samples
    for _ in range(2):
        metrics.observe(stats.data, 0)
    assert 'vllm:nixl_num_failed_transfers_total{engine="0",model_name="m"} 2.0' in generate_latest(registry).decode()


def test_statistics_of_a_switch_survive_samples_that_cannot_be_taken(vllm: Any) -> None:
    def broken() -> Any:
        raise RuntimeError("telemetry is broken")

    telemetry = SimpleNamespace(samples=SimpleNamespace(take=broken), ledger=Ledger())
    upstream = vllm.NixlKVConnectorStats()
    upstream.record_failed_transfer()
    stats = vllm._with_samples(upstream, telemetry)
    assert stats.data["num_failed_transfers"] == [1]
    assert stats.aggregate(vllm.TracedStats.from_data({"kvpath_samples": [sample()]})).data["kvpath_samples"]
    assert telemetry.ledger.losses.errors == 1
