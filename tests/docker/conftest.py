"""``compose.yaml``, profile ``cpu``, for real: images from the one build file, stand-ins for what cannot be pulled."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from compose_containers import Containers  # noqa: E402
from docker_daemon import REPOSITORY, TOOLS, docker_daemon, make_base_image, why_not  # noqa: E402

START_TIMEOUT_S = 900
PROGRAMS = ("prometheus", "promtool", "alertmanager", "amtool", "otelcol", "busybox")
ALERTMANAGER_TEMPLATES = TOOLS.parent / "debian/usr/share/prometheus/alertmanager"
VARIABLES = {
    "KVPATH_ADMIN_TOKEN": "docker-tests",
    "KVPATH_GRAFANA_PASSWORD": "docker-tests",
    "KVPATH_ROUTER_PORT": "0",  # free ones
    "KVPATH_GRAFANA_PORT": "0",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.docker)


def say(line: str) -> None:
    print(f"[docker] {line}", file=sys.__stderr__, flush=True)


@pytest.fixture(scope="session")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """Brings everything up; skips, and says why, where no Docker daemon can be started."""
    if reason := why_not():
        pytest.skip(f"compose.yaml was NOT brought up: {reason}")
    with docker_daemon() as environment:
        running = Containers(environment | VARIABLES)
        try:
            build(running, tmp_path_factory.mktemp("stand-ins"))
            say("docker compose --profile cpu up --wait")
            running.compose("up", "--detach", "--wait", "--wait-timeout", str(START_TIMEOUT_S))
            yield running
        except AssertionError:
            say(running.compose("ps", "--all", check=False))
            say(running.compose("logs", "--tail", "30", check=False))
            raise
        finally:
            say("docker compose down --volumes")
            running.compose("down", "--volumes", "--timeout", "20", check=False)


def build(running: Containers, folder: Path) -> None:
    """Makes the base image, ours, and stand-ins under the names that compose.yaml and the build file pin."""
    dockerfile = (REPOSITORY / "stack/image/Dockerfile").read_text()
    base = dict(re.findall(r"^ARG (\w+)_IMAGE=(\S+)$", dockerfile, re.MULTILINE))
    services = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())["services"]
    say("base image: debootstrap")
    make_base_image(base["PYTHON"], running.environment)
    shutil.copytree(HERE / "standins", folder, dirs_exist_ok=True)
    shutil.copytree(ALERTMANAGER_TEMPLATES, folder / "alertmanager-templates")
    for program in PROGRAMS:
        shutil.copy(TOOLS / program, folder)
    stand_ins = {name: services[name]["image"] for name in ("prometheus", "alertmanager", "grafana")}
    for target, image in {**stand_ins, "busybox": base["BUSYBOX"], "otelcol": base["COLLECTOR"]}.items():
        build_stand_in(running, folder, target, image)
    say("our images: docker compose build (minutes, the first time)")
    running.compose("build", "router", "prefill-cpu", "collector")
    build_stand_in(running, folder, "tempo", services["tempo"]["image"])


def build_stand_in(running: Containers, folder: Path, target: str, image: str) -> None:
    command = ["docker", "build", "--quiet", "--target", target, "--tag", image, str(folder)]
    done = subprocess.run(command, env=running.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
