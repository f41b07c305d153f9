"""A Redis of one's own, for tests and the benchmark: on a socket that nobody else sees, gone when the block ends."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = "redis-server"


@contextmanager
def redis_server() -> Iterator[str]:
    """Yields the server's URL once it accepts connections. Raises ``RuntimeError`` when there is none to start."""
    if shutil.which(PROGRAM) is None:
        raise RuntimeError(f"{PROGRAM} is missing; on Debian: .ci/packages redis-server installs it")
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "redis.sock")
        argv = [PROGRAM, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            said = []
            try:
                for line in server.stdout:
                    said.append(line)
                    if "eady to accept connections" in line:
                        break
                else:
                    raise RuntimeError(f"{PROGRAM} did not start: {''.join(said)}")
                yield f"unix://{socket}"
            finally:
                server.terminate()
                server.stdout.read()
