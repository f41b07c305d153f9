"""The environment tells what a run was measured with, and no secret."""

from __future__ import annotations

from stack.analysis.synthetic import pull_trace
from stack.experiment.environment import environment, processes
from stack.experiment.target import Target

TARGET = Target("http://127.0.0.1:8000", "m", ("push",), 4096, "/models/m", {"P": "prefill"})


def test_what_is_recorded():
    found = environment(TARGET, {"engine_flags": ["--enforce-eager"]}, {"UCX_TLS": "tcp", "HOME": "/root"})
    assert found["client"]["variables"] == {"UCX_TLS": "tcp"}
    assert found["client"]["packages"]["aiohttp"]
    assert found["client"]["usable_cpus"] >= 1
    assert found["target"]["max_model_len"] == 4096
    assert found["target"]["engines"] == {"P": "prefill"}
    assert found["engine_flags"] == ["--enforce-eager"]


def test_secrets_are_not():
    variables = {"VLLM_API_KEY": "k", "VLLM_HF_TOKEN": "t", "NIXL_PASSWORD": "p", "UCX_SECRET_X": "s", "OMP_A": "1"}
    assert environment(TARGET, {}, variables)["client"]["variables"] == {"OMP_A": "1"}


def test_the_processes_behind_the_traces():
    traces = [pull_trace(number=n) for n in (1, 2)]
    found = processes(span.resource for trace in traces for span in trace.spans)
    assert [p["service.name"] for p in found] == ["kvpath-router", "vllm-decode", "vllm-prefill"]
    assert {p["kvpath.boot_id"] for p in found} == {"boot-a"}
