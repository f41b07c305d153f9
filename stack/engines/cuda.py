"""Whether this host has a GPU that CUDA can use, asked before anything is started for it.

``python -I cuda.py`` prints how many there are. It is a process of its own, as the driver stays open in whoever asked.
Standard library only.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys

TIMEOUT_S = 60.0


def require_gpu() -> None:
    """Raises :class:`DeploymentError` with one line when there is no GPU."""
    from stack.engines.processes import DeploymentError

    try:
        asked = subprocess.run([sys.executable, "-I", __file__], capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise DeploymentError(f"NVIDIA's driver did not say in {TIMEOUT_S:.0f} s whether there is a GPU") from None
    if asked.returncode != 0:
        why = asked.stderr.strip().rpartition("\n")[2]
        raise DeploymentError(f"device cuda needs a GPU, and there is none here: {why}; device cpu needs none")


def count_gpus() -> int:
    """Returns the number of GPUs that CUDA_VISIBLE_DEVICES leaves; raises ``OSError`` when there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise OSError("NVIDIA's driver (libcuda.so.1) is not installed") from None
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0 or count.value == 0:
        raise OSError(f"NVIDIA's driver finds none (status {status})")
    return count.value


if __name__ == "__main__":
    try:
        print(count_gpus())
    except OSError as error:
        sys.exit(str(error))
