from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

from stack.router.settings import DECODE, PREFILL


@pytest.mark.parametrize("role", [PREFILL, DECODE])
def test_it_runs_by_itself_as_its_module_says(role: str) -> None:
    argv = [sys.executable, "-m", "stack.router.stub_engine", "--role", role]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as stub:
        try:
            assert stub.stdout is not None
            port = int(stub.stdout.readline())
            assert httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
        finally:
            stub.terminate()
