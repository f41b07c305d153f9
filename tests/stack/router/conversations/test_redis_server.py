from __future__ import annotations

import pytest

from stack.router.conversations.redis_server import redis_server


def test_without_the_program_it_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeError, match="packages redis-server"), redis_server():
        pass


def test_a_server_that_does_not_start_says_why(monkeypatch, tmp_path):
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho out of memory\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(RuntimeError, match="out of memory"), redis_server():
        pass
