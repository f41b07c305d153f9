from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from connector.runtime import OPTION_ENDPOINT
from stack.engines.command_line import EngineSpec, engine_argv, engine_env, kv_transfer_config

PREFILL = EngineSpec(
    role="prefill",
    engine_id="prefill-0",
    model="/models/m",
    served_model_name="m",
    port=8100,
    side_channel_port=5600,
)
DECODE = replace(PREFILL, role="decode", engine_id="decode-0", port=8200, side_channel_port=5610, kept_port=5620)


def option(argv: tuple[str, ...], name: str) -> str:
    assert argv.count(name) == 1
    return argv[argv.index(name) + 1]


def test_the_server_module_runs_in_this_interpreter() -> None:
    assert engine_argv(PREFILL)[:3] == (sys.executable, "-m", "vllm.entrypoints.openai.api_server")


def test_an_engine_listens_on_loopback_unless_told_otherwise() -> None:
    assert option(engine_argv(PREFILL), "--host") == "127.0.0.1"
    assert option(engine_argv(replace(PREFILL, host="10.0.0.7")), "--host") == "10.0.0.7"
    assert engine_env(PREFILL)["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"


def test_the_switch_holds_one_traced_push_and_one_traced_pull_child() -> None:
    config = json.loads(option(engine_argv(PREFILL), "--kv-transfer-config"))
    assert config["kv_connector"] == "SwitchConnector"
    assert config["kv_connector_module_path"] == "connector.switch"
    assert config["engine_id"] == "prefill-0"
    extra = config["kv_connector_extra_config"]
    assert extra["kvpath_otlp_endpoint"] == "http://127.0.0.1:4318"
    assert [child["kv_connector"] for child in extra["connectors"]] == ["TracedPushConnector", "TracedPullConnector"]
    assert {child["kv_connector_module_path"] for child in extra["connectors"]} == {"connector.nixl"}


@pytest.mark.parametrize(("spec", "role"), [(PREFILL, "kv_producer"), (DECODE, "kv_consumer")])
def test_roles_agree_between_the_switch_and_its_children(spec: EngineSpec, role: str) -> None:
    config = json.loads(json.dumps(kv_transfer_config(spec)))
    assert config["kv_role"] == role
    assert {child["kv_role"] for child in config["kv_connector_extra_config"]["connectors"]} == {role}


@pytest.mark.parametrize(
    ("kind", "name", "module"),
    [
        ("push", "TracedPushConnector", "connector.nixl"),
        ("pull", "TracedPullConnector", "connector.nixl"),
        ("upstream-push", "NixlPushConnector", None),
        ("upstream-pull", "NixlPullConnector", None),
    ],
)
def test_other_connectors(kind, name: str, module: str | None) -> None:
    config = kv_transfer_config(replace(PREFILL, connector=kind))
    assert config["kv_connector"] == name
    assert config.get("kv_connector_module_path") == module
    assert (OPTION_ENDPOINT in config["kv_connector_extra_config"]) is (module is not None)


def options_of_children(spec: EngineSpec) -> list[dict[str, object]]:
    extra = json.loads(json.dumps(kv_transfer_config(spec)))["kv_connector_extra_config"]
    return [child["kv_connector_extra_config"] for child in extra["connectors"]]


@pytest.mark.parametrize("spec", [PREFILL, DECODE])
def test_what_d_keeps_moves_in_the_pull_child_alone(spec: EngineSpec) -> None:
    push, pull = options_of_children(spec)
    assert "bidirectional_kv_xfer" not in push, "upstream refuses it for push"
    assert pull["bidirectional_kv_xfer"] is True
    assert (pull["kv_recompute_threshold"], pull["decoder_kv_blocks_ttl"]) == (64, 480)
    alone = kv_transfer_config(replace(spec, connector="pull"))["kv_connector_extra_config"]
    assert pull.items() <= alone.items()  # type: ignore[attr-defined]


def test_only_a_decode_engine_keeps_and_says_where() -> None:
    assert not {"kvpath_kept_host", "kvpath_kept_port"} & set(options_of_children(PREFILL)[1])
    pull = options_of_children(replace(DECODE, kept_host="10.0.0.7", kept_ttl_s=20))[1]
    assert (pull["kvpath_kept_host"], pull["kvpath_kept_port"]) == ("10.0.0.7", 5620)
    assert pull["decoder_kv_blocks_ttl"] == 20
    assert "kvpath_kept_port" not in options_of_children(replace(DECODE, kept_port=None))[1]
    assert (DECODE.keeps, PREFILL.keeps, replace(DECODE, connector="push").keeps) == (True, False, False)
    assert DECODE.kept_url == "http://127.0.0.1:5620"
    assert DECODE.ports == (8200, 5610, 5611, 5620)


@pytest.mark.parametrize("kind", ["switch", "push", "pull"])
def test_d_is_another_nixl_engine_at_every_start_and_keeps_its_name(kind) -> None:
    prefill, decode = (kv_transfer_config(replace(spec, connector=kind)) for spec in (PREFILL, DECODE))
    assert prefill["engine_id"] == "prefill-0"
    assert "engine_id" not in decode
    names = [each["kv_connector_extra_config"]["kvpath_instance"] for each in (prefill, decode)]  # type: ignore[index]
    assert names == ["prefill-0", "decode-0"]


def test_p_computes_what_it_could_not_read() -> None:
    assert kv_transfer_config(PREFILL)["kv_load_failure_policy"] == "recompute"
    assert "kv_load_failure_policy" not in kv_transfer_config(DECODE)


def test_on_a_cpu_agents_have_no_thread_pool_of_their_own() -> None:
    config = kv_transfer_config(PREFILL)
    children = config["kv_connector_extra_config"]["connectors"]
    assert [child["kv_connector_extra_config"]["num_threads"] for child in children] == [0, 0]
    assert "num_threads" not in json.dumps(kv_transfer_config(replace(PREFILL, device="cuda")))


def test_an_engine_without_connector_has_no_transfer_and_no_side_channel() -> None:
    spec = replace(PREFILL, connector="none")
    assert "--kv-transfer-config" not in engine_argv(spec)
    assert spec.ports == (8100,)


def test_the_switch_needs_two_side_channel_ports() -> None:
    assert PREFILL.ports == (8100, 5600, 5601)
    assert replace(PREFILL, connector="push").ports == (8100, 5600)


def test_traces_go_where_the_endpoint_says_and_nowhere_without_one() -> None:
    assert option(engine_argv(PREFILL), "--otlp-traces-endpoint") == "http://127.0.0.1:4318/v1/traces"
    untraced = replace(PREFILL, otlp_endpoint=None)
    assert "--otlp-traces-endpoint" not in engine_argv(untraced)
    assert kv_transfer_config(untraced)["kv_connector_extra_config"]["kvpath_otlp_endpoint"] is None  # type: ignore[index]


@pytest.mark.parametrize(("spec", "service"), [(PREFILL, "vllm-prefill"), (DECODE, "vllm-decode")])
def test_services_are_told_apart(spec: EngineSpec, service: str) -> None:
    assert engine_env(spec)["OTEL_SERVICE_NAME"] == service


def test_cpu_and_cuda_differ_in_what_only_one_of_them_needs() -> None:
    cuda = replace(PREFILL, device="cuda", gpu_memory_utilization=0.4, tensor_parallel_size=2, visible_devices="2,3")
    assert option(engine_argv(cuda), "--gpu-memory-utilization") == "0.4"
    assert option(engine_argv(cuda), "--tensor-parallel-size") == "2"
    assert engine_env(cuda)["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert not [name for name in engine_env(cuda) if name.startswith("VLLM_CPU")]
    assert "kv_buffer_device" not in kv_transfer_config(cuda)
    assert "--gpu-memory-utilization" not in engine_argv(PREFILL)
    assert engine_env(PREFILL)["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert kv_transfer_config(PREFILL)["kv_buffer_device"] == "cpu"


def test_nvlink_multicast_is_off_on_gpus() -> None:
    env = engine_env(replace(PREFILL, device="cuda", tensor_parallel_size=2))
    assert {name: env[name] for name in env if "NVLS" in name or "SYMM" in name} == {
        "NCCL_NVLS_ENABLE": "0",
        "NVSHMEM_DISABLE_NVLS": "1",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    }
    assert "NCCL_NVLS_ENABLE" not in engine_env(PREFILL)


def test_extra_arguments_come_last_and_win() -> None:
    argv = engine_argv(replace(PREFILL, extra_args=("--max-num-seqs", "4")))
    assert argv[-2:] == ("--max-num-seqs", "4")


CUDA = replace(
    PREFILL, device="cuda", dtype="bfloat16", block_size=16, max_model_len=20480, gpu_memory_utilization=0.42
)


def test_engines_that_share_a_gpu_are_given_their_kv_cache_in_bytes() -> None:
    assert "--kv-cache-memory-bytes" not in engine_argv(CUDA)
    assert option(engine_argv(replace(CUDA, gpu_kv_cache_gib=1.5)), "--kv-cache-memory-bytes") == str(3 * 2**29)


def test_cuda_graphs_are_on_and_no_core_is_spared_on_a_gpu() -> None:
    assert "--enforce-eager" not in engine_argv(CUDA)
    assert "kvpath_few_cores" not in kv_transfer_config(CUDA)["kv_connector_extra_config"]  # type: ignore[operator]
    assert option(engine_argv(CUDA), "--max-model-len") == "20480"
    assert "--no-enable-prefix-caching" in engine_argv(CUDA)


def test_kv_through_host_memory_is_said_to_the_switch_and_to_both_children() -> None:
    config = json.loads(json.dumps(kv_transfer_config(replace(CUDA, kv_buffer_device="cpu"))))
    children = config["kv_connector_extra_config"]["connectors"]
    assert [each["kv_buffer_device"] for each in (config, *children)] == ["cpu"] * 3


@pytest.mark.parametrize("kind", ["upstream-push", "push"])
def test_kv_through_host_memory_is_said_to_single_connectors(kind) -> None:
    assert kv_transfer_config(replace(CUDA, connector=kind, kv_buffer_device="cpu"))["kv_buffer_device"] == "cpu"


def test_ucx_chooses_among_what_it_is_given() -> None:
    assert "UCX_TLS" not in engine_env(CUDA)
    assert engine_env(replace(CUDA, ucx_tls="tcp,cuda_copy,self"))["UCX_TLS"] == "tcp,cuda_copy,self"
