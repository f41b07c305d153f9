"""A Docker daemon of the tests' own, whose images nobody else sees, and the base image that nothing can be pulled for.

Its images stay in ``.tools/docker`` (git-ignored), so that a second run builds little; everything that runs is ended.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY / ".tools" / "docker"
TOOLS = REPOSITORY / ".tools" / "bin"
PLUGINS = ("docker-compose", "docker-buildx")
PROGRAMS = ("dockerd", "docker", "debootstrap", "ip")
BRIDGE = Path("/sys/class/net/docker0")
SUITE = "bookworm"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


def why_not() -> str | None:
    """Says why no daemon can be started here, or ``None`` when one can."""
    if os.getuid() != 0:
        return "a Docker daemon needs root"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"not installed here: {', '.join(missing)} (`make test-docker` installs them)"
    if BRIDGE.exists():
        return "a Docker daemon runs here already, and stand-ins must not take the names of public images in it"
    return None


@contextmanager
def docker_daemon() -> Iterator[Mapping[str, str]]:
    """Starts a daemon and gives the environment for ``docker`` to talk to it."""
    folder = Path(tempfile.mkdtemp(prefix="kvpath-docker-"))  # short: the socket's path may have 107 characters
    plugins = folder / "config" / "cli-plugins"
    plugins.mkdir(parents=True)
    for plugin in PLUGINS:
        (plugins / plugin).symlink_to(TOOLS / plugin)
    environment = os.environ | {"DOCKER_HOST": f"unix://{folder}/sock", "DOCKER_CONFIG": str(folder / "config")}
    command = ["dockerd", "--data-root", str(DATA), "--exec-root", str(folder / "exec")]
    command += ["--pidfile", str(folder / "pid"), "--host", environment["DOCKER_HOST"]]
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_until_it_answers(daemon, environment, folder / "log")
        yield environment
    finally:
        daemon.terminate()
        daemon.wait(STOP_TIMEOUT_S)
        subprocess.run(["ip", "link", "delete", BRIDGE.name], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_it_answers(daemon: subprocess.Popen[bytes], environment: Mapping[str, str], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while daemon.poll() is None and time.monotonic() < deadline:
        if subprocess.run(["docker", "info"], env=environment, capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.2)
    raise AssertionError(f"dockerd does not answer; its log ends with\n{log.read_text(errors='replace')[-2000:]}")


def make_base_image(name: str, environment: Mapping[str, str]) -> None:
    """Makes ``name`` from Debian's packages unless it is there: Python, and what pip on this machine is told."""
    known = subprocess.run(["docker", "image", "inspect", name], env=environment, capture_output=True, check=False)
    if known.returncode == 0:
        return
    with tempfile.TemporaryDirectory(prefix="kvpath-base-") as folder:
        root = Path(folder)
        packages = "--include=python3,python3-venv,ca-certificates"
        bootstrap = ["debootstrap", "--variant=minbase", packages, SUITE, folder, *_mirror()]
        subprocess.run(bootstrap, check=True, capture_output=True)
        load = ["docker", "import", *_bring_pip_settings(root), "-", name]
        packing = subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE)
        subprocess.run(load, stdin=packing.stdout, env=environment, check=True, capture_output=True)
        assert packing.wait() == 0


def _mirror() -> list[str]:
    command = ["apt-get", "indextargets", "--format", "$(SITE)", f"Codename: {SUITE}", "Identifier: Packages"]
    sites = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return sites[:1]


def _bring_pip_settings(root: Path) -> list[str]:
    """Copies the files that this machine's ``PIP_*`` variables name; returns what sets the variables in the image."""
    changes = []
    for name, value in os.environ.items():
        if name.startswith("PIP_"):
            changes += ["--change", f"ENV {name}={value}"]
            for path in map(Path, value.split()):
                if path.is_absolute() and path.exists():
                    inside = root / path.relative_to("/")
                    inside.parent.mkdir(parents=True, exist_ok=True)
                    subprocess.run(["cp", "-aLT", str(path), str(inside)], check=True)
    return changes
