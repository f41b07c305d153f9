from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

COMPOSE = (Path(__file__).parents[3] / "compose.yaml").read_text()
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE)["services"]
OWN_IMAGES = {"kvpath-control", "kvpath-engine-cpu", "kvpath-engine-gpu", "kvpath-collector"}
PROFILES = {"cpu", "gpu", "control", "prefill", "decode"}
PUBLISHED = {"router", "grafana", "collector-control"}
each_service = pytest.mark.parametrize("name", SERVICES)


def test_it_passes_the_schema_of_compose(repository: Path) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"]
    checked = subprocess.run(check, cwd=repository, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_services_stand_in_the_order_of_a_request() -> None:
    order = ["router", "prefill", "decode", "collector", "tempo", "prometheus", "alertmanager", "grafana", "exporter"]
    parts = [name.partition("-")[0] for name in SERVICES]
    assert list(dict.fromkeys(parts)) == order


@each_service
def test_every_service_has_a_profile(name: str) -> None:
    assert set(SERVICES[name]["profiles"]) <= PROFILES


@each_service
def test_every_service_has_a_health_check_that_ends(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] == "CMD"  # no shell: some images have none
    assert int(check["timeout"].rstrip("s")) < int(check["interval"].rstrip("s"))


@each_service
def test_every_service_has_limits_for_memory_processes_and_logs(name: str) -> None:
    limits = SERVICES[name]["deploy"]["resources"]["limits"]
    assert limits["memory"]
    assert limits["pids"]
    assert set(SERVICES[name]["logging"]["options"]) == {"max-size", "max-file"}


@each_service
def test_no_service_gains_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["cap_drop"] == ["ALL"]
    assert "privileged" not in service
    assert set(service.get("cap_add", [])) <= {"IPC_LOCK"}


@each_service
def test_every_image_is_pinned_to_a_full_version(name: str) -> None:
    assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+", SERVICES[name]["image"])


def test_no_word_of_latest(repository: Path) -> None:
    for text in (COMPOSE, (repository / "stack/image/Dockerfile").read_text()):
        assert "latest" not in text


def test_what_we_build_has_our_version_and_names_a_target_of_the_one_build_file(repository: Path) -> None:
    version = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"]
    targets = re.findall(r"^FROM \S+ AS (\S+)$", (repository / "stack/image/Dockerfile").read_text(), re.MULTILINE)
    built = {s["image"].partition(":")[0]: s for s in SERVICES.values() if "build" in s}
    assert set(built) == OWN_IMAGES
    for image, service in built.items():
        assert service["build"]["dockerfile"] == "stack/image/Dockerfile"
        assert service["build"]["target"] in targets
        assert image == f"kvpath-{service['build']['target']}"
        assert service["pull_policy"] == "build"  # a public image of that name would not be ours
        assert image == "kvpath-collector" or service["image"] == f"{image}:{version}"


def test_only_router_and_grafana_are_published_and_spans_come_in_where_engines_are_elsewhere() -> None:
    assert {name for name, service in SERVICES.items() if "ports" in service} == PUBLISHED
    for name in PUBLISHED:
        (port,) = SERVICES[name]["ports"]
        assert re.match(r"\$\{KVPATH_\w+:-127\.0\.0\.1\}:", port), port
    assert SERVICES["collector-control"]["profiles"] == ["control"]


def test_only_engines_alone_on_their_host_share_its_network() -> None:
    assert {name for name, s in SERVICES.items() if "network_mode" in s} == {"prefill-host", "decode-host"}
    for name in ("prefill-host", "decode-host"):
        assert SERVICES[name]["environment"]["KVPATH_ENGINE_HOST"].endswith(":-127.0.0.1}")


def test_secrets_have_no_default_and_say_what_they_are_for() -> None:
    required = dict(re.findall(r"\$\{(\w+):\?([^}]+)\}", COMPOSE))
    assert set(required) == {"KVPATH_ADMIN_TOKEN", "KVPATH_GRAFANA_PASSWORD"}
    assert all(name in text for name, text in required.items())
    assert not re.search(r"\$\{(KVPATH_ADMIN_TOKEN|KVPATH_GRAFANA_PASSWORD)(:?-[^}]*)?\}", COMPOSE)


def test_nobody_waits_for_less_than_health() -> None:
    for service in SERVICES.values():
        assert all(c["condition"] == "service_healthy" for c in service.get("depends_on", {}).values())


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_in_every_profile_what_must_be_waited_for_is_there(profile: str) -> None:
    members = {name for name, service in SERVICES.items() if profile in service["profiles"]}
    for name in members:
        needed = {on for on, c in SERVICES[name].get("depends_on", {}).items() if c.get("required", True)}
        assert needed <= members, name


def test_one_profile_is_one_host() -> None:
    members = {p: {name for name, s in SERVICES.items() if p in s["profiles"]} for p in PROFILES}
    shared = {"router", "tempo", "prometheus", "alertmanager", "grafana", "exporter"}
    assert members["cpu"] == shared | {"collector", "prefill-cpu", "decode-cpu"}
    assert members["gpu"] == shared | {"collector", "prefill-gpu", "decode-gpu"}
    assert members["control"] == shared | {"collector-control"}
    assert members["prefill"] == {"prefill-host"}
    assert members["decode"] == {"decode-host"}


def test_what_must_survive_lies_in_named_volumes(read_yaml: Callable[[str], Any]) -> None:
    named = set(read_yaml("compose.yaml")["volumes"])
    mounts = [volume.partition(":") for s in SERVICES.values() for volume in s.get("volumes", [])]
    assert {source for source, _, _ in mounts if re.fullmatch(r"[a-z]+", source)} == named
    assert {"tempo", "prometheus", "alertmanager", "grafana", "exporter"} <= named


def test_what_comes_from_the_repository_is_there_and_is_not_written_to(repository: Path) -> None:
    for volume in chain.from_iterable(s.get("volumes", []) for s in SERVICES.values()):
        if volume.startswith("./"):
            source, _, options = volume.partition(":")
            assert options.endswith(":ro"), volume
            assert (repository / source).exists(), volume


def test_every_variable_of_an_engine_is_one_of_its_settings() -> None:
    from stack.engines.engine_settings import EngineSettings
    from stack.exporter.settings import ExporterSettings
    from stack.router.settings import RouterSettings

    prefixes = {
        "KVPATH_ENGINE_": EngineSettings,
        "KVPATH_ROUTER_": RouterSettings,
        "KVPATH_EXPORTER_": ExporterSettings,
    }
    for name, service in SERVICES.items():
        for variable in service.get("environment", {}):
            for prefix, settings in prefixes.items():
                if variable.startswith(prefix):
                    assert variable.removeprefix(prefix).lower() in settings.model_fields, (name, variable)
