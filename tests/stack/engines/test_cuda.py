from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from stack.engines.cuda import require_gpu
from stack.engines.processes import DeploymentError

DRIVER = "int cuInit(unsigned flags) { return %d; }\nint cuDeviceGetCount(int *count) { *count = %d; return 0; }\n"


@pytest.fixture
def install_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a driver of two functions where the loader finds it first."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")

    def install(status: int, count: int) -> None:
        (tmp_path / "driver.c").write_text(DRIVER % (status, count))
        argv = [compiler, "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "driver.c"]
        subprocess.run(argv, check=True)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))

    return install


def test_a_gpu_that_the_driver_finds_is_enough(install_driver) -> None:
    install_driver(0, 1)
    require_gpu()


@pytest.mark.parametrize(("status", "count"), [(100, 0), (0, 0), (999, 1)])
def test_a_driver_that_finds_none_is_one_line(install_driver, status: int, count: int) -> None:
    install_driver(status, count)
    with pytest.raises(DeploymentError) as caught:
        require_gpu()
    assert str(caught.value) == (
        f"device cuda needs a GPU, and there is none here: NVIDIA's driver finds none (status {status}); "
        "device cpu needs none"
    )


def test_a_file_that_is_no_driver_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").write_text("not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # were the host's own driver found all the same
    with pytest.raises(DeploymentError, match=r"libcuda\.so\.1|finds none"):
        require_gpu()
