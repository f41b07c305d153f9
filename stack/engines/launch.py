"""Starts the whole local deployment: trace store, both engines at once, router; ready when it has really generated.

Everything stops, last started first, when the context ends, for whatever reason.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from connector import names
from stack.engines.command_line import EngineSpec, engine_argv, engine_env
from stack.engines.cuda import require_gpu
from stack.engines.model import ModelError, prepare_random, prepare_smollm2
from stack.engines.processes import Deployment, DeploymentError, Part
from stack.engines.readiness import Awaited, Say, check_ports_are_free, prove_or_restart, wait_until_healthy
from stack.engines.settings import KEPT_PORT_OFFSET, LOOPBACK, DeploymentSettings, engine_specs

STORE_FILE = "traces.sqlite"
_MODES = {
    "switch": (names.MODE_PUSH, names.MODE_PULL),
    "push": (names.MODE_PUSH,),
    "upstream-push": (names.MODE_PUSH,),
    "pull": (names.MODE_PULL,),
    "upstream-pull": (names.MODE_PULL,),
}


@dataclass(frozen=True, slots=True)
class RunningStack:
    """A deployment that is ready for requests."""

    settings: DeploymentSettings
    deployment: Deployment
    prefill: EngineSpec
    decode: EngineSpec
    modes: tuple[str, ...]


@contextmanager
def running_stack(settings: DeploymentSettings, say: Say) -> Iterator[RunningStack]:
    """Starts everything, proves it with a generation in every mode, and stops it when the block ends.

    Raises :class:`DeploymentError` or :class:`ModelError` with one clear message when it cannot.
    """
    with running_stacks([settings], say) as (stack,):
        yield stack


@contextmanager
def running_stacks(several: Sequence[DeploymentSettings], say: Say) -> Iterator[tuple[RunningStack, ...]]:
    """As :func:`running_stack`, for deployments beside each other whose engines start at the same time.

    Every one needs ports and a run directory of its own.
    """
    if any(settings.device == "cuda" for settings in several):
        require_gpu()
    for settings in several:
        _make_run_dir(settings.run_dir)
    specs = [engine_specs(settings, _model_directory(settings, say)) for settings in several]
    check_ports_are_free(_ports(several, specs))
    with Deployment() as deployment:
        stores = [_start_store(deployment, settings, say) for settings in several]
        # A store answers in a second, so it is there before an engine has its first span to send.
        wait_until_healthy(deployment, stores, 60.0, say)
        say(f"starting {2 * len(several)} engines: a minute or two, most of it imports and compilation")
        started = [_start_engines(deployment, s, *pair) for s, pair in zip(several, specs, strict=True)]
        everything = [each for engines, router in started for each in (*engines, router)]
        timeout_s = max(settings.start_timeout_s for settings in several)
        wait_until_healthy(deployment, everything, timeout_s, say)
        stacks = []
        for settings, (prefill, decode), (engines, router) in zip(several, specs, started, strict=True):
            modes = _MODES[settings.connector]
            url, model = settings.router_url, settings.model_name
            prove_or_restart(deployment, engines, router, url, model, modes, timeout_s, say)
            stacks.append(RunningStack(settings, deployment, prefill, decode, modes))
        try:
            yield tuple(stacks)
        finally:
            say("stopping")


def _model_directory(settings: DeploymentSettings, say: Say) -> Path:
    if settings.model_dir is not None:
        if not (settings.model_dir / "config.json").is_file():
            raise ModelError(f"{settings.model_dir} is no model directory: there is no config.json")
        return settings.model_dir.resolve()
    return (prepare_random if settings.model == "random" else prepare_smollm2)(settings.cache, say)


def _ports(
    several: Sequence[DeploymentSettings], specs: Sequence[tuple[EngineSpec, EngineSpec]]
) -> dict[str, tuple[int, ...]]:
    ports: dict[str, tuple[int, ...]] = {}
    for settings, (prefill, decode) in zip(several, specs, strict=True):
        which = "" if len(several) == 1 else f" of {settings.run_dir.name}"
        ports |= {
            f"trace store{which}: --store-port": (settings.store_port,),
            f"router{which}: --router-port": (settings.router_port,),
        }
        for spec in (prefill, decode):
            options = _port_options(spec, settings.kept_port is not None)
            ports |= {f"{spec.role} engine{which}: {options[place]}": (port,) for place, port in enumerate(spec.ports)}
    owners: dict[int, str] = {}
    for who, numbers in ports.items():
        for number in numbers:
            if number in owners:
                raise DeploymentError(f"port {number} is meant for both {owners[number]} and {who}; choose others")
            owners[number] = who
    return ports


def _port_options(spec: EngineSpec, kept_given: bool) -> tuple[str, ...]:
    """Which option each of ``spec.ports`` comes from."""
    side = f"--{spec.role}-side-channel-port"
    channels = {"none": (), "switch": (side, f"{side} + 1")}.get(spec.connector, (side,))
    kept = "--kept-port" if kept_given else f"{side} + {KEPT_PORT_OFFSET}"
    return (f"--{spec.role}-port", *channels, kept)


def _make_run_dir(path: Path) -> None:
    """Finds out at once whether logs can be written, not when engines have been waited for."""
    try:
        (path / "logs").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path / "logs"):
            pass
    except OSError as error:
        raise DeploymentError(f"cannot write to {path}: {error.strerror}; choose another --run-dir") from None


def _start_store(deployment: Deployment, settings: DeploymentSettings, say: Say) -> Awaited:
    if not settings.keep_traces:
        files = list(settings.run_dir.glob(f"{STORE_FILE}*"))  # SQLite's write-ahead log lies beside it
        for file in files:
            file.unlink()
        if files:
            say(f"removed {settings.run_dir / STORE_FILE}, the traces of the previous run")
    say(f"starting; logs are in {settings.run_dir / 'logs'}")
    (store,) = deployment.start(_store_part(settings))
    return Awaited(store, f"{settings.store_url}/ready")


def _start_engines(
    deployment: Deployment, settings: DeploymentSettings, prefill: EngineSpec, decode: EngineSpec
) -> tuple[list[Awaited], Awaited]:
    """Returns the engines and the router."""
    specs = (prefill, decode)
    engines = deployment.start(*(_engine_part(settings, spec) for spec in specs))
    (router,) = deployment.start(_router_part(settings, prefill, decode))
    return (
        [Awaited(part, f"{spec.url}/health") for part, spec in zip(engines, specs, strict=True)],
        Awaited(router, f"{settings.router_url}/ready"),
    )


def _store_part(settings: DeploymentSettings) -> Part:
    return Part(
        name="trace store",
        argv=(sys.executable, "-m", "stack", "store"),
        log=settings.run_dir / "logs" / "store.log",
        env={
            "KVPATH_STORE_PORT": str(settings.store_port),
            "KVPATH_STORE_PATH": str(settings.run_dir / STORE_FILE),
        },
    )


def _engine_part(settings: DeploymentSettings, spec: EngineSpec) -> Part:
    return Part(
        name=f"{spec.role} engine",
        argv=engine_argv(spec),
        log=settings.run_dir / "logs" / f"{spec.role}.log",
        env=engine_env(spec),
    )


def _router_part(settings: DeploymentSettings, prefill: EngineSpec, decode: EngineSpec) -> Part:
    config = settings.run_dir / "router.json"
    config.write_text(json.dumps(router_config(settings, prefill, decode), indent=2))
    return Part(
        name="router",
        argv=(sys.executable, "-m", "stack", "router", "--config", str(config)),
        log=settings.run_dir / "logs" / "router.log",
    )


def router_config(settings: DeploymentSettings, prefill: EngineSpec, decode: EngineSpec) -> dict[str, object]:
    """Returns the router's ``--config`` for these two engines."""
    modes = _MODES[settings.connector] + ((names.MODE_REUSE,) if decode.keeps else ())
    return {
        "host": LOOPBACK,
        "port": settings.router_port,
        "default_mode": modes[0],
        "allow_mode_header": True,  # it listens on loopback only
        "model_name": settings.model_name,
        "otlp_endpoint": settings.store_url,
        "reuse_ttl_s": settings.kept_ttl_s,
        "reuse_kept_timeout_s": 2.0 if settings.device == "cpu" else 0.25,  # engines on few cores answer late
        "engines": [
            {
                "url": spec.url,
                "role": spec.role,
                "engine_id": spec.engine_id,
                "side_channel_host": spec.side_channel_host,
                "side_channel_port": spec.side_channel_port,
                "tp_size": spec.tensor_parallel_size,
                "modes": modes,
                "kept_url": spec.kept_url if spec.keeps else None,
            }
            for spec in (prefill, decode)
        ],
    }
