from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[3]
DOCKERFILE = (REPOSITORY / "stack/image/Dockerfile").read_text()
SERVICES: dict[str, Any] = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())["services"]
LOCK = (REPOSITORY / "requirements.lock").read_text()
STAGES = dict(re.findall(r"^FROM \S+ AS (\S+)$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))
IMAGES = dict(re.findall(r"^ARG (\w+_IMAGE)=(\S+)$", DOCKERFILE, re.MULTILINE))


def test_every_image_that_is_built_on_is_pinned_to_a_full_version() -> None:
    foreign = set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) - set(STAGES)
    assert foreign == {f"${{{name}}}" for name in IMAGES}
    assert all(re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+[a-z-]*", image) for image in IMAGES.values())


def test_the_collector_is_the_version_that_its_image_names() -> None:
    version = IMAGES["COLLECTOR_IMAGE"].partition(":")[2]
    assert SERVICES["collector"]["image"] == f"kvpath-collector:{version}"


def test_python_and_vllm_are_versions_that_the_project_supports() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (supported,) = (d for d in project["optional-dependencies"]["gpu"] if d.startswith("vllm"))
    low, high = re.findall(r"\d+\.(\d+)", supported)
    minor = int(re.findall(r":v0\.(\d+)\.", IMAGES["VLLM_IMAGE"])[0])
    assert int(low) <= minor < int(high)
    assert IMAGES["PYTHON_IMAGE"].startswith("python:3.11.")  # the lock's


def test_nixl_on_gpus_is_the_one_that_was_tested_on_cpus() -> None:
    (version,) = re.findall(r"^ARG NIXL_VERSION=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert f"\nnixl=={version}\n" in LOCK


@pytest.mark.parametrize("target", ["control", "engine-cpu", "engine-gpu"])
def test_nothing_of_ours_runs_as_root(target: str) -> None:
    assert re.findall(r"^USER (\S+)$", STAGES[target], re.MULTILINE)[-1] == "kvpath"


@pytest.mark.parametrize("target", ["control", "engine-cpu", "engine-gpu"])
def test_the_wheel_is_what_is_installed_and_kvpath_is_what_runs(target: str) -> None:
    assert "COPY --from=wheel /wheel /wheel" in STAGES[target]
    assert 'ENTRYPOINT ["kvpath"]' in STAGES[target]
    assert not re.search(r"^COPY (connector|stack|dashboards)", STAGES[target], re.MULTILINE)


@pytest.mark.parametrize("target", ["control", "engine-cpu"])
def test_versions_come_from_the_lock(target: str) -> None:
    assert re.search(r"pip install .*--(constraint|requirement) /tmp/requirements.lock", STAGES[target])


def test_only_what_an_image_needs_is_sent_to_the_builder() -> None:
    ignored = (REPOSITORY / "stack/image/Dockerfile.dockerignore").read_text().split()
    assert ignored[0] == "*"
    copied = {
        source.rstrip("/")
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert copied == {entry[1:] for entry in ignored if entry.startswith("!")}
