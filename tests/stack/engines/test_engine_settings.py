from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from stack.engines.command_line import engine_env, kv_transfer_config
from stack.engines.engine_settings import EngineSettings, engine_spec


def test_an_engine_listens_on_loopback_unless_told_otherwise() -> None:
    spec = engine_spec(EngineSettings(), "prefill", "/models/m")
    assert (spec.host, spec.side_channel_host) == ("127.0.0.1", "127.0.0.1")
    assert engine_spec(EngineSettings(host="0.0.0.0"), "prefill", "/models/m").host == "0.0.0.0"


def test_a_name_of_this_host_becomes_an_address_because_nixl_binds_no_names() -> None:
    spec = engine_spec(EngineSettings(side_channel_host="localhost"), "decode", "/models/m")
    assert engine_env(spec)["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"


def test_the_engine_id_names_the_role_unless_given() -> None:
    assert engine_spec(EngineSettings(), "decode", "m").engine_id == "decode-0"
    assert engine_spec(EngineSettings(id="decode-7"), "decode", "m").engine_id == "decode-7"


def test_defaults_of_each_device_are_those_of_a_local_deployment() -> None:
    cpu, gpu = (engine_spec(EngineSettings(device=device), "prefill", "m") for device in ("cpu", "cuda"))
    assert (cpu.dtype, cpu.block_size) == ("float32", 32)
    assert (gpu.dtype, gpu.block_size) == ("auto", 16)


def test_both_children_of_the_switch_get_the_nixl_backend() -> None:
    settings = EngineSettings(device="cuda", nixl_backends=("LIBFABRIC",))
    config = kv_transfer_config(engine_spec(settings, "prefill", "m"))
    extra = config["kv_connector_extra_config"]
    assert isinstance(extra, dict)
    assert [child["kv_connector_extra_config"]["backends"] for child in extra["connectors"]] == [["LIBFABRIC"]] * 2


def test_only_a_decode_engine_keeps_anything_for_the_next_turn() -> None:
    settings = EngineSettings(kept_port=5620, kept_host="0.0.0.0")
    assert engine_spec(settings, "decode", "m").kept_url == "http://0.0.0.0:5620"
    assert engine_spec(settings, "prefill", "m").kept_port is None
    assert not engine_spec(EngineSettings(), "decode", "m").keeps


@pytest.mark.parametrize(
    ("model", "name"), [("smollm2", "SmolLM2-135M-Instruct"), ("random", "random-2-layers"), ("org/model", "org/model")]
)
def test_the_name_that_requests_give(model: str, name: str) -> None:
    assert EngineSettings(model=model).model_name == name
    assert EngineSettings(model=model, served_model_name="x").model_name == "x"


def test_a_directory_is_served_under_its_own_name(tmp_path: Path) -> None:
    assert EngineSettings(model=str(tmp_path)).model_name == tmp_path.name


def test_only_the_random_model_has_no_weights_to_load() -> None:
    assert engine_spec(EngineSettings(model="random"), "prefill", "m").load_format == "dummy"
    assert engine_spec(EngineSettings(model="smollm2"), "prefill", "m").load_format == "auto"


def test_variables_hold_lists_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPATH_ENGINE_NIXL_BACKENDS", '["LIBFABRIC"]')
    monkeypatch.setenv("KVPATH_ENGINE_ARGS", '["--max-num-seqs", "8"]')
    spec = engine_spec(EngineSettings(), "prefill", "m")
    assert spec.nixl_backends == ("LIBFABRIC",)
    assert spec.extra_args == ("--max-num-seqs", "8")


def test_a_port_beyond_the_range_is_refused() -> None:
    with pytest.raises(ValidationError, match="side_channel_port"):
        EngineSettings(side_channel_port=65535)  # the switch's pull side takes the next one
