from __future__ import annotations

import argparse
import json
import re
import shlex
import socket
from pathlib import Path

import pytest

from connector import names
from stack.engines import up
from stack.engines.launch import router_config, running_stack, running_stacks
from stack.engines.model import ModelError
from stack.engines.processes import DeploymentError
from stack.engines.settings import DeploymentSettings, engine_specs
from stack.own_command import own_command
from stack.router.settings import RouterSettings, configured_modes


def settings(**values: object) -> DeploymentSettings:
    return DeploymentSettings.model_validate({"cpu_threads": 1, **values})


def test_the_routers_configuration_is_one_that_the_router_takes() -> None:
    chosen = settings(router_port=18000, prefill_side_channel_port=15600)
    config = json.loads(json.dumps(router_config(chosen, *engine_specs(chosen, Path("/m")))))
    read = RouterSettings(**config)
    assert read.port == 18000
    assert read.allow_mode_header
    assert configured_modes(read) == ("push", "pull", "reuse", "plain")
    assert {engine.engine_id for engine in read.engines} == {"prefill-0", "decode-0"}
    assert [engine.kept_url for engine in read.engines] == [None, "http://127.0.0.1:5620"]
    assert read.engines[0].side_channel_port == 15600


@pytest.mark.parametrize(("connector", "modes"), [("push", ("push", "plain")), ("upstream-pull", ("pull", "plain"))])
def test_one_way_connectors_are_offered_as_such(connector: str, modes: tuple[str, ...]) -> None:
    chosen = settings(connector=connector)
    config = json.loads(json.dumps(router_config(chosen, *engine_specs(chosen, Path("/m")))))
    assert configured_modes(RouterSettings(**config)) == modes


def test_how_long_blocks_are_kept_is_said_to_d_and_to_the_router() -> None:
    chosen = settings(kept_ttl_s=20, kept_port=7777)
    prefill, decode = engine_specs(chosen, Path("/m"))
    assert (decode.kept_ttl_s, decode.kept_port, prefill.kept_port) == (20, 7777, None)
    assert RouterSettings(**router_config(chosen, prefill, decode)).reuse_ttl_s == 20


def test_kv_that_goes_through_host_memory_is_not_reused(tmp_path: Path) -> None:
    chosen = settings(device="cuda", kv_buffer_device="cpu", model_dir=tmp_path)
    config = json.loads(json.dumps(router_config(chosen, *engine_specs(chosen, tmp_path))))
    assert configured_modes(RouterSettings(**config)) == ("push", "pull", "plain")


def test_engines_of_one_deployment_share_no_port() -> None:
    prefill, decode = engine_specs(settings(), Path("/m"))
    assert not set(prefill.ports) & set(decode.ports)


def test_the_random_model_is_not_loaded_from_weights() -> None:
    assert {spec.load_format for spec in engine_specs(settings(model="random"), Path("/m"))} == {"dummy"}


def test_a_deployment_on_a_gpu_is_asked_for_on_the_command_line(tmp_path: Path) -> None:
    given = f"--device cuda --model-dir {tmp_path} --load-format dummy --block-size 64 --max-model-len 20480"
    given += " --gpu-kv-cache-gib 32 --kv-buffer-device cpu --ucx-tls tcp,cuda_copy,self --connector upstream-push"
    chosen = up.settings_from(parsed(*given.split()))
    assert chosen.model_name == tmp_path.name
    for spec in engine_specs(chosen, tmp_path):
        assert (spec.device, spec.load_format, spec.dtype) == ("cuda", "dummy", "auto")
        assert (spec.block_size, spec.max_model_len, spec.gpu_memory_utilization) == (64, 20480, 0.42)
        assert (spec.gpu_kv_cache_gib, spec.kv_buffer_device) == (32, "cpu")
        assert (spec.ucx_tls, spec.connector) == ("tcp,cuda_copy,self", "upstream-push")


def test_the_cpu_deployment_is_the_default() -> None:
    for spec in engine_specs(settings(), Path("/m")):
        assert (spec.device, spec.dtype, spec.block_size, spec.load_format) == ("cpu", "float32", 32, "auto")


def test_untraced_engines_have_no_endpoint() -> None:
    assert {spec.otlp_endpoint for spec in engine_specs(settings(engine_tracing=False), Path("/m"))} == {None}


def test_a_model_directory_without_a_configuration_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"), running_stack(settings(model_dir=tmp_path), print):
        pass


def test_deployments_beside_each_other_may_not_share_a_port(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    both = [settings(model_dir=tmp_path, run_dir=tmp_path / name) for name in "ab"]
    with pytest.raises(DeploymentError, match=r"4318 is meant for both"), running_stacks(both, print):
        pass


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        ("store_port", "trace store: --store-port"),
        ("prefill_port", "prefill engine: --prefill-port"),
        ("prefill_side_channel_port", "prefill engine: --prefill-side-channel-port"),
        ("kept_port", "decode engine: --kept-port"),
    ],
)
def test_a_port_in_use_is_said_with_its_option(tmp_path: Path, taken: str, said: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        chosen = settings(model_dir=tmp_path, run_dir=tmp_path, **{taken: port})
        with pytest.raises(DeploymentError, match=rf"port .*\b{port} \({said}\)"), running_stack(chosen, print):
            pass


@pytest.mark.parametrize(("offset", "plus"), [(1, "1"), (10, "10")])
def test_a_port_that_follows_from_another_is_said_so(tmp_path: Path, offset: int, plus: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        chosen = settings(model_dir=tmp_path, run_dir=tmp_path, decode_side_channel_port=port - offset)
        said = rf"\b{port} \(decode engine: --decode-side-channel-port \+ {plus}\)"
        with pytest.raises(DeploymentError, match=said), running_stack(chosen, print):
            pass


def test_help_says_which_ports_are_taken_beside_those_given() -> None:
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    assert "(--decode-side-channel-port + 10)" in " ".join(parser.format_help().split())
    assert parsed("--kept-port", "7777").kept_port == 7777


def test_a_run_directory_that_cannot_be_written_ends_it_before_a_model_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    chosen = settings(run_dir=tmp_path / "file", cache=tmp_path / "cache")
    with pytest.raises(DeploymentError, match="file: Not a directory; choose another --run-dir"):  # noqa: SIM117
        with running_stack(chosen, print):
            pass
    assert not (tmp_path / "cache").exists()


def test_a_deployment_for_a_gpu_needs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    chosen = settings(device="cuda", run_dir=tmp_path / "run", cache=tmp_path / "cache")
    with pytest.raises(DeploymentError, match="device cuda needs a GPU"), running_stack(chosen, print):
        pass
    assert list(tmp_path.iterdir()) == []


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    return parser.parse_args(list(argv))


def test_flags_are_stronger_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPATH_ROUTER_PORT", "1111")
    monkeypatch.setenv("KVPATH_STORE_PORT", "2222")
    chosen = up.settings_from(parsed("--router-port", "3333"))
    assert (chosen.router_port, chosen.store_port) == (3333, 2222)


@pytest.mark.parametrize("connector", ["switch", "push", "upstream-pull"])
def test_what_a_ready_deployment_prints_works_as_printed(connector: str) -> None:
    chosen = settings(connector=connector)
    specs = engine_specs(chosen, Path("/m"))
    printed = up.invitation(chosen, *specs)
    modes = configured_modes(RouterSettings.model_validate(router_config(chosen, *specs)))
    (named,) = re.findall(r"modes (.*?)[;:]", printed)
    assert tuple(re.split(", | and ", named)) == modes
    curl = shlex.split(printed[printed.index("curl") : printed.index("\n\nIt streams")].replace("\\\n", " "))
    body = json.loads(curl[curl.index("-d") + 1])
    assert (body["model"], body["stream"]) == (chosen.model_name, True), "what is not streamed is in no table"
    (mode,) = [each.partition(": ")[2] for each in curl if each.startswith(names.HEADER_MODE)]
    assert mode in modes
    assert f"{own_command()} report --url http://127.0.0.1:4318 " in printed
    assert "http://127.0.0.1:4318/view/ " in printed
    assert "out/up/traces.sqlite " in printed
