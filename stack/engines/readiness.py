"""Whether ports are free, whether parts answer, and whether the whole really generates.

Works on the launcher's main thread; waits by polling, because the things waited for are other processes.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from connector import names
from stack.engines.processes import Deployment, DeploymentError, RunningPart, last_lines

Say = Callable[[str], None]
POLL_S = 0.25
PROGRESS_EVERY_S = 5.0
GENERATION_TIMEOUT_S = 180.0
STALL_S = 60.0  # a first generation that takes longer is taken for stuck; it takes a few seconds on a laptop
READINESS_PROMPT = "Prefill computes the keys and values of a prompt; decode continues from them. " * 4
# "(EngineCore pid=9) INFO 11-29 12:42:52 [file.py:185] ", which says nothing while one waits.
_VLLM_PREFIX = re.compile(r"^(\(.*?pid=\d+\) )?([A-Z]+ \S+ \S+ )?(\[\S+:\d+\] )?")


class NoAnswerError(DeploymentError):
    """A request through the router got no answer in time."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """A part that is ready once ``url`` answers 2xx."""

    part: RunningPart
    url: str


def check_ports_are_free(ports: Mapping[str, Iterable[int]], host: str = "127.0.0.1") -> None:
    """Raises :class:`DeploymentError` with one line that names every port that is taken.

    ``ports``: whose it would be and which option says so → the ports.
    """
    taken = [f"{port} ({who})" for who, numbers in ports.items() for port in numbers if not _is_free(host, port)]
    if taken:
        raise DeploymentError(
            f"in use on {host}: port {', '.join(taken)}; end what listens there (`ss -ltnp` shows it) "
            "or choose others (every option is a variable too: --store-port is KVPATH_STORE_PORT)"
        )


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not count
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def wait_until_healthy(deployment: Deployment, awaited: Iterable[Awaited], timeout_s: float, say: Say) -> None:
    """Waits for every part to answer; says every few seconds what is missing, where its log is, and what is new there.

    Raises :class:`DeploymentError` when any part ends meanwhile or ``timeout_s`` seconds pass.
    """
    waiting = list(awaited)
    started = time.monotonic()
    said = started
    shown: dict[str, str] = {}
    with httpx.Client(timeout=2.0, trust_env=False) as client:
        while True:
            deployment.check()
            for each in [each for each in waiting if _answers(client, each.url)]:
                waiting.remove(each)
                say(f"{each.part.part.name} is up ({time.monotonic() - started:.0f} s)")
            if not waiting:
                return
            now = time.monotonic()
            if now - started > timeout_s:
                missing = ", ".join(map(_with_log, waiting))
                raise DeploymentError(f"not ready after {timeout_s:.0f} s: {missing}; its log says why")
            if now - said >= PROGRESS_EVERY_S:
                said = now
                say(_progress(waiting, now - started, shown))
            time.sleep(POLL_S)


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).is_success
    except httpx.HTTPError:
        return False


def _progress(waiting: Sequence[Awaited], elapsed_s: float, shown: dict[str, str]) -> str:
    """One line on what is awaited; ``shown`` holds what was last said of each part's log, and is brought up to date."""
    said = f"waiting for {' and '.join(_with_log(each) for each in waiting)}: {elapsed_s:.0f} s"
    for part in (each.part.part for each in waiting):
        line = _VLLM_PREFIX.sub("", "".join(last_lines(part.log, 1))).strip()[:80]
        if line and shown.get(part.name) != line:
            shown[part.name] = line
            return f"{said}; new in {part.log.name}: {line}"
    return said


def _with_log(awaited: Awaited) -> str:
    return f"{awaited.part.part.name} ({awaited.part.part.log})"


def prove_or_restart(
    deployment: Deployment,
    engines: Sequence[Awaited],
    router: Awaited,
    router_url: str,
    model: str,
    modes: Sequence[str],
    start_timeout_s: float,
    say: Say,
) -> None:
    """As :func:`prove_generation`; when a mode does not answer, starts ``engines`` again, once, and proves all anew.

    Raises :class:`DeploymentError` when the second try fails too, or when anything else is wrong.
    """
    try:
        prove_generation(deployment, router_url, model, modes, say, STALL_S)
    except NoAnswerError as stall:
        who = " and ".join(map(_with_log, engines))
        say(f"{stall}, so an engine is stuck; starting again, once: {who}")
        deployment.restart([each.part for each in engines])
        wait_until_healthy(deployment, engines, start_timeout_s, say)
        wait_until_healthy(deployment, [router], start_timeout_s, say)  # after them: it has to see that they are back
        prove_generation(deployment, router_url, model, modes, say, GENERATION_TIMEOUT_S)


def prove_generation(
    deployment: Deployment,
    router_url: str,
    model: str,
    modes: Iterable[str],
    say: Say,
    timeout_s: float = GENERATION_TIMEOUT_S,
) -> None:
    """Sends one real request through the router in each mode; the first pays for the handshake.

    Raises :class:`NoAnswerError` when one has no answer after ``timeout_s`` seconds, and :class:`DeploymentError`
    with the router's answer when one fails.
    """
    body = {"model": model, "prompt": READINESS_PROMPT, "max_tokens": 2, "temperature": 0}
    with httpx.Client(timeout=timeout_s, trust_env=False) as client:
        for mode in modes:
            started = time.monotonic()
            headers = {names.HEADER_MODE: mode, names.HEADER_UNCOUNTED: names.UNCOUNTED_READINESS}
            try:
                answer = client.post(f"{router_url}/v1/completions", json=body, headers=headers)
            except httpx.TimeoutException as error:
                deployment.check()
                raise NoAnswerError(f"a first {mode} request got no answer in {timeout_s:g} s") from error
            except httpx.HTTPError as error:
                deployment.check()
                raise DeploymentError(f"a {mode} request through the router failed: {error!r}") from error
            if not answer.is_success or not _generated(answer.json()):
                deployment.check()
                raise DeploymentError(
                    f"a {mode} request through the router got HTTP {answer.status_code}: {answer.text[:500]}"
                )
            say(f"a first {mode} request generated in {time.monotonic() - started:.1f} s (handshake included)")


def _generated(answer: dict[str, Any]) -> bool:
    """A token is enough: random weights may begin with one that has no text."""
    return bool(answer["choices"][0]["text"]) or bool((answer.get("usage") or {}).get("completion_tokens"))
