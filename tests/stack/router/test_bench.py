from __future__ import annotations

import os
import signal
import subprocess
import sys

import httpx

BENCH = """
import time
from stack.router import bench
with bench._stub("prefill", "P") as prefill, bench._stub("decode", "D") as decode:
    with bench._router(prefill, decode) as (port, _):
        print(port, flush=True)
        time.sleep(600)
"""


def test_ctrl_c_ends_the_router_before_those_that_it_talks_to() -> None:
    """A terminal's Ctrl-C goes to the whole group. The router's last spans then still have somewhere to go."""
    argv = [sys.executable, "-c", BENCH]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as bench:
        assert bench.stdout is not None
        url = f"http://127.0.0.1:{int(bench.stdout.readline())}"
        body = {"model": "m", "prompt": "text", "max_tokens": 1}
        headers = {"x-kvpath-mode": "plain"}
        answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=30, trust_env=False)
        os.killpg(bench.pid, signal.SIGINT)
        _, said = bench.communicate(timeout=30)
    assert answer.status_code == 200
    assert said.splitlines()[-1] == "KeyboardInterrupt"
    assert "retrying" not in said
    assert "Connection refused" not in said
