"""What Docker Compose itself makes of the file, for every profile."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stack.engines.command_line import engine_argv, engine_env
from stack.engines.engine_settings import EngineSettings, engine_spec
from stack.router.settings import RouterSettings

SECRETS = {"KVPATH_ADMIN_TOKEN": "a token", "KVPATH_GRAFANA_PASSWORD": "a password"}
HOSTS = {
    "KVPATH_CONTROL_HOST": "10.0.0.1",
    "KVPATH_PREFILL_HOST": "10.0.0.2",
    "KVPATH_DECODE_HOST": "10.0.0.3",
}
Config = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def run(
    tool: Callable[[str], Path], repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., subprocess.CompletedProcess[str]]:
    home = str(tmp_path_factory.mktemp("home"))

    def compose(profile: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        command = [tool("docker-compose"), "--env-file", os.devnull, "--profile", profile, "config", "--format", "json"]
        env = {"PATH": os.environ["PATH"], "HOME": home} | variables
        return subprocess.run(command, cwd=repository, env=env, capture_output=True, text=True, check=False)

    return compose


@pytest.fixture(scope="module")
def config(run: Callable[..., subprocess.CompletedProcess[str]]) -> Config:
    """Returns what Compose makes of the file; fails on any warning too."""

    @functools.cache
    def read(profile: str, **variables: str) -> dict[str, Any]:
        done = run(profile, SECRETS | variables)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        made: dict[str, Any] = json.loads(done.stdout)
        return made

    return read


@pytest.mark.parametrize("profile", ["cpu", "gpu", "control", "prefill", "decode"])
def test_every_profile_is_valid(config: Config, profile: str) -> None:
    assert config(profile)["services"]


@pytest.mark.parametrize("missing", SECRETS)
def test_without_a_secret_nothing_starts_and_one_line_says_which(
    run: Callable[..., subprocess.CompletedProcess[str]], missing: str
) -> None:
    done = run("cpu", {name: value for name, value in SECRETS.items() if name != missing})
    assert done.returncode != 0
    assert f"set {missing} in .env" in done.stderr


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_on_one_host_two_ports_are_published_on_loopback(config: Config, profile: str) -> None:
    services = config(profile)["services"]
    ports = {(p["host_ip"], p["published"]) for s in services.values() for p in s.get("ports", [])}
    assert ports == {("127.0.0.1", "8000"), ("127.0.0.1", "3000")}
    opened = config(profile, KVPATH_BIND="0.0.0.0")["services"]["router"]["ports"]
    assert opened[0]["host_ip"] == "0.0.0.0"


def test_the_control_host_takes_spans_where_the_engines_reach_it(config: Config) -> None:
    (port,) = config("control", **HOSTS)["services"]["collector-control"]["ports"]
    assert (port["host_ip"], port["published"]) == ("10.0.0.1", "4318")


@pytest.mark.parametrize(("profile", "hosts"), [("cpu", {}), ("gpu", {}), ("control", HOSTS)])
def test_the_router_accepts_what_compose_gives_it(
    config: Config, profile: str, hosts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in config(profile, **hosts)["services"]["router"]["environment"].items():
        monkeypatch.setenv(name, value)
    prefill, decode = RouterSettings().engines  # type: ignore[call-arg]
    assert prefill.url == f"http://{hosts.get('KVPATH_PREFILL_HOST', 'prefill')}:8000"
    assert decode.url == f"http://{hosts.get('KVPATH_DECODE_HOST', 'decode')}:8000"


@pytest.mark.parametrize(
    ("profile", "service", "hosts"),
    [
        ("cpu", "prefill-cpu", {}),
        ("cpu", "decode-cpu", {}),
        ("gpu", "prefill-gpu", {}),
        ("gpu", "decode-gpu", {}),
        ("prefill", "prefill-host", HOSTS),
        ("decode", "decode-host", HOSTS),
    ],
)
def test_an_engine_agrees_with_what_the_router_knows_of_it(
    config: Config, profile: str, service: str, hosts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    router = config("control" if hosts else profile, **hosts)["services"]["router"]["environment"]
    (known,) = (e for e in json.loads(router["KVPATH_ROUTER_ENGINES"]) if e["role"] == service.partition("-")[0])
    made = config(profile, **hosts)["services"][service]
    monkeypatch.setattr(
        "socket.gethostbyname", lambda name: {"prefill": "10.1.0.2", "decode": "10.1.0.3"}.get(name, name)
    )
    for name, value in made["environment"].items():
        monkeypatch.setenv(name, value)
    spec = engine_spec(EngineSettings(), known["role"], "/model")
    assert spec.engine_id == known["engine_id"]
    assert known["url"].endswith(f":{spec.port}")
    assert spec.host in ("0.0.0.0", hosts.get(f"KVPATH_{known['role'].upper()}_HOST"))
    assert spec.side_channel_host.startswith("10.")
    assert known.get("side_channel_port", spec.side_channel_port) == spec.side_channel_port
    if spec.role == "decode":
        assert known["kept_url"].endswith(f":{spec.kept_port}")
        assert spec.kept_host == spec.host
    assert known["tp_size"] == spec.tensor_parallel_size
    assert "--otlp-traces-endpoint" in engine_argv(spec)
    assert f"http://{spec.host if hosts else '127.0.0.1'}:8000/health" in made["healthcheck"]["test"]
    assert engine_env(spec)["VLLM_NIXL_SIDE_CHANNEL_HOST"] == spec.side_channel_host


def test_efa_hosts_get_the_fabric_pinned_memory_and_libfabric(config: Config) -> None:
    service = config("prefill", KVPATH_NIXL_BACKEND="LIBFABRIC", **HOSTS)["services"]["prefill-host"]
    assert service["environment"]["KVPATH_ENGINE_NIXL_BACKENDS"] == '["LIBFABRIC"]'
    assert service["devices"][0]["source"] == "/dev/infiniband"
    assert service["ulimits"]["memlock"] == {"single": -1} or service["ulimits"]["memlock"] == -1
    assert service["cap_add"] == ["IPC_LOCK"]
    assert service["network_mode"] == "host"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_prometheus_scrapes_the_engines_where_they_are(config: Config, role: str) -> None:
    content = config("control", **HOSTS)["configs"][f"targets-{role}"]["content"]
    assert json.loads(content) == [{"targets": [f"{HOSTS[f'KVPATH_{role.upper()}_HOST']}:8000"]}]
    assert json.loads(config("cpu")["configs"][f"targets-{role}"]["content"]) == [{"targets": [f"{role}:8000"]}]
