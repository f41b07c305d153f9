from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from connector.fewcores import RECHECK_MS, few_cores, progress_delay, sleep_at_once

IDLE_AGENTS = textwrap.dedent(
    """
    import contextlib, os, resource, time
    from nixl._api import nixl_agent, nixl_agent_config
    from connector.fewcores import progress_delay

    def used():
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    agents = []
    for context in (progress_delay(nixl_agent, 1_000), contextlib.nullcontext()):
        with context:
            agents.append(nixl_agent(f"idle-{len(agents)}", nixl_agent_config(num_threads=4, capture_telemetry=True)))
        before = used()
        time.sleep(1.5)
        print("used", used() - before, flush=True)
    os._exit(0)
    """
)


def test_an_idle_agent_hardly_uses_a_core() -> None:
    """Without the delay the second agent spins beside the first: its figure is why this module exists."""
    done = subprocess.run([sys.executable, "-c", IDLE_AGENTS], capture_output=True, text=True, check=True)
    patient, spinning = (float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("used "))
    assert patient < 0.15
    assert spinning > 2 * patient


def test_the_configuration_class_is_put_back() -> None:
    from nixl._api import nixl_agent

    bindings = nixl_agent.__init__.__globals__["nixlBind"]
    original = bindings.nixlAgentConfig
    with progress_delay(nixl_agent, 5):
        assert bindings.nixlAgentConfig is not original
    assert bindings.nixlAgentConfig is original


def test_a_nixl_that_is_built_differently_keeps_its_own_way(caplog: pytest.LogCaptureFixture) -> None:
    class Agent:
        def __init__(self) -> None:
            pass

    with progress_delay(Agent, 5):
        Agent()
    assert "will spin" in caplog.text


def test_readers_of_the_message_queue_stop_spinning_also_those_that_exist(
    vllm: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.distributed.device_communicators import shm_broadcast

    existing = object.__new__(shm_broadcast.SpinCondition)
    existing.busy_loop_s = 1.0
    monkeypatch.setattr(shm_broadcast.SpinCondition, "busy_loop_s", None, raising=False)
    monkeypatch.setattr(shm_broadcast, "SHM_READER_RECHECK_INTERVAL_MS", 5000)
    sleep_at_once()
    assert existing.busy_loop_s == 0.0
    existing.busy_loop_s = 1.0  # as upstream's constructor does
    assert existing.busy_loop_s == 0.0
    assert shm_broadcast.MessageQueue.ReadTimeoutWithWarnings(None, False).timeout_ms() == RECHECK_MS


def test_nothing_changes_unless_the_option_says_so(vllm: object) -> None:
    from nixl._api import nixl_agent

    bindings = nixl_agent.__init__.__globals__["nixlBind"]
    original = bindings.nixlAgentConfig
    with few_cores(False, nixl_agent):
        assert bindings.nixlAgentConfig is original
