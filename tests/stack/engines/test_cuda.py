from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from stack.engines.cuda import count_gpus, require_gpu
from stack.engines.processes import DeploymentError


class Driver:
    """The two functions of NVIDIA's driver that are asked."""

    def __init__(self, status: int, count: int) -> None:
        self._status = status
        self._count = count

    def cuInit(self, flags: int) -> int:  # noqa: N802  # NVIDIA's name
        return self._status

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self._count
        return 0


def test_gpus_that_the_driver_finds_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", {"libcuda.so.1": Driver(0, 2)}.__getitem__)
    assert count_gpus() == 2


@pytest.mark.parametrize(("status", "count"), [(100, 0), (0, 0), (999, 1)])
def test_a_driver_that_finds_none_says_so(monkeypatch: pytest.MonkeyPatch, status: int, count: int) -> None:
    monkeypatch.setattr(ctypes, "CDLL", {"libcuda.so.1": Driver(status, count)}.__getitem__)
    with pytest.raises(OSError, match=rf"^NVIDIA's driver finds none \(status {status}\)$"):
        count_gpus()


def test_no_gpu_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").write_text("not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # were the host's own driver found all the same
    with pytest.raises(DeploymentError, match=r"libcuda\.so\.1|finds none") as caught:
        require_gpu()
    assert str(caught.value).startswith("device cuda needs a GPU, and there is none here: NVIDIA's driver")
    assert str(caught.value).endswith("; device cpu needs none")
    assert "\n" not in str(caught.value)
