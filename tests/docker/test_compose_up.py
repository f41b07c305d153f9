from __future__ import annotations

import re

import pytest
from compose_containers import Containers

from connector import names
from stack.analysis.complete import defects
from stack.router.metrics import SPLIT_WEIGHT

PROMPT = (
    "Prefill computes the keys and values of a prompt; decode continues from them. " * 6 + "The capital of France is"
)
MODES = (names.MODE_PUSH, names.MODE_PULL)
TRANSFER = {names.MODE_PUSH: names.SPAN_WRITE, names.MODE_PULL: names.SPAN_READ}


def test_everything_is_healthy(containers: Containers) -> None:
    services = containers.compose("ps", "--format", "{{.Service}} {{.Health}}").splitlines()
    assert sorted(services) == [
        f"{name} healthy"
        for name in (
            *("alertmanager", "collector", "decode-cpu", "exporter", "grafana"),
            *("prefill-cpu", "prometheus", "router", "tempo"),
        )
    ]


def test_only_router_and_grafana_listen_on_this_host_and_on_loopback(containers: Containers) -> None:
    published = set(re.findall(r"(\S+):\d+->(\d+)/tcp", containers.compose("ps", "--format", "{{.Ports}}")))
    assert published == {("127.0.0.1", "8000"), ("127.0.0.1", "3000")}


def test_push_and_pull_give_the_same_text(containers: Containers) -> None:
    push, pull = (containers.ask(mode, PROMPT) for mode in MODES)
    assert push.text == pull.text
    assert push.text.strip()


@pytest.mark.parametrize("mode", MODES)
def test_kv_goes_over_the_containers_network_and_the_trace_is_complete(containers: Containers, mode: str) -> None:
    containers.ask(mode, PROMPT)  # pays for the handshake
    before = containers.received_bytes("decode-cpu")
    answer = containers.ask(mode, PROMPT)
    received = containers.received_bytes("decode-cpu") - before
    trace = containers.trace(answer.trace_id)
    assert defects(trace, engine_spans=True) == []
    (transfer,) = trace.named()[TRANSFER[mode]]
    moved = transfer.attributes[names.ATTR_BYTES]
    assert isinstance(moved, int)
    assert moved > 1_000_000
    assert moved <= received < 2 * moved
    hosts = {(span.resource.service_name, span.resource.host_name) for span in trace.spans if span.resource.host_name}
    assert hosts == {
        (names.SERVICE_ROUTER, "router"),
        (names.SERVICE_PREFILL, "prefill"),
        (names.SERVICE_DECODE, "decode"),
    }


def test_what_decode_kept_goes_back_to_prefill_on_the_next_turn(containers: Containers) -> None:
    first = containers.ask(names.MODE_REUSE, PROMPT, "docker")
    before = containers.received_bytes("prefill-cpu")
    second = containers.ask(names.MODE_REUSE, f"{PROMPT}{first.text} And Italy's capital is", "docker")
    received = containers.received_bytes("prefill-cpu") - before
    trace = containers.trace(second.trace_id)
    (lookup,) = trace.named()[names.SPAN_REUSE_LOOKUP]
    assert lookup.attributes[names.ATTR_REUSE_OUTCOME] == names.REUSE_HIT
    (read,) = (span for span in trace.named()[names.SPAN_READ] if span.resource.host_name == "prefill")
    moved = read.attributes[names.ATTR_BYTES]
    assert isinstance(moved, int)
    assert 1_000_000 < moved <= received


def test_prometheus_scrapes_every_part(containers: Containers) -> None:
    def jobs() -> set[tuple[str, str]]:
        text = containers.inside("prometheus", "promtool", "query", "instant", "http://127.0.0.1:9090", "up")
        return set(re.findall(r'job="(\w+)"} => (\d)', text))

    wanted = {(job, "1") for job in ("router", "prefill", "decode", "collector", "exporter", "prometheus")}
    assert containers.eventually(jobs, lambda found: found == wanted) == wanted


def test_the_exporter_counts_requests_of_both_modes(containers: Containers) -> None:
    for mode in MODES:
        containers.trace(containers.ask(mode, PROMPT).trace_id)

    def complete() -> dict[str, float]:
        pattern = rf'{names.METRIC_EXPORTER_TRACES}_total\{{mode="(\w+)",outcome="complete"\}} (\S+)'
        return {mode: float(count) for mode, count in re.findall(pattern, containers.metrics("exporter", 9400))}

    counted = containers.eventually(complete, lambda found: all(found.get(mode) for mode in MODES))
    assert all(counted.get(mode) for mode in MODES), counted


def test_the_split_changes_while_it_runs(containers: Containers) -> None:
    containers.inside("router", "kvpath", "mode", "push=0", "pull=100")
    try:
        shares = dict(re.findall(rf'{SPLIT_WEIGHT}\{{mode="(\w+)"\}} (\S+)', containers.metrics("router", 8000)))
        assert shares["pull"] == "100.0"
    finally:
        containers.inside("router", "kvpath", "mode", "default")
