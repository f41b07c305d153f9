"""The GPU command: what is done stays done, a time limit ends everything, results are packed whatever happens."""

from __future__ import annotations

import asyncio
import json
import tarfile
import time
from pathlib import Path

import pytest

from stack.engines.processes import DeploymentError
from stack.experiment import gpu
from stack.experiment.gpu_arms import ARMS, TRACING
from stack.experiment.gpu_host import TimeIsUp, pack, time_limit
from stack.experiment.gpu_transport import transports


@pytest.fixture
def command(tmp_path: Path):
    def run(*argv: str) -> int:
        return gpu.main(["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out"), *argv])

    return run


def test_every_arm_has_its_place_in_the_order() -> None:
    assert set(gpu.ORDER) == {*ARMS, TRACING}


def test_an_arm_that_is_done_is_packed_and_not_begun_again(command, tmp_path: Path, monkeypatch) -> None:
    begun = []

    def arm(args, arm, folder: Path, say) -> None:
        begun.append(arm.name)
        (folder / "ab").mkdir()
        (folder / "ab" / "result.json").write_text("{}")
        (folder / "traces.sqlite").write_text("large")

    monkeypatch.setattr(gpu, "transport_arm", arm)
    for _ in range(2):
        assert command("--arm", "default-16", "--arm", "tcp-16") == 0
    assert begun == ["default-16", "tcp-16"]
    with tarfile.open(tmp_path / "out" / "tcp-16.tar.gz") as packed:
        assert set(packed.getnames()) == {"tcp-16", "tcp-16/ab", "tcp-16/ab/result.json", "tcp-16/done.json"}


def test_an_arm_that_fails_leaves_the_next_one_its_turn(command, tmp_path: Path, monkeypatch, capsys) -> None:
    def fail(args, arm, folder: Path, say) -> None:
        raise DeploymentError("the prefill engine ended with status 1")

    monkeypatch.setattr(gpu, "transport_arm", fail)
    monkeypatch.setattr(gpu, "tracing_arm", lambda args, folder, say: None)
    assert command("--arm", "default-16", "--arm", TRACING) == 1
    assert "default-16: the prefill engine ended" in capsys.readouterr().out
    assert (tmp_path / "work" / TRACING / "done.json").exists()
    assert not (tmp_path / "work" / "default-16" / "done.json").exists()
    assert (tmp_path / "out" / "default-16.tar.gz").exists()


def test_the_time_limit_ends_an_event_loop_and_packs(command, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(gpu, "STOP_S", 0.0)
    monkeypatch.setattr(gpu, "LEAST_S", 0.0)
    ended = []

    async def for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    def arm(args, arm, folder: Path, say) -> None:
        try:
            asyncio.run(for_ever())
        finally:
            ended.append(arm.name)

    monkeypatch.setattr(gpu, "transport_arm", arm)
    assert command("--all", "--time-limit", "0.3") == 1
    assert ended == ["default-16"]
    assert "the time limit" in capsys.readouterr().out
    assert (tmp_path / "out" / "default-16.tar.gz").exists()


def test_an_arm_is_not_begun_with_too_little_time(command, monkeypatch, capsys) -> None:
    monkeypatch.setattr(gpu, "transport_arm", lambda *_: pytest.fail("begun"))
    assert command("--arm", "default-16", "--time-limit", "60") == 1
    assert "not begun" in capsys.readouterr().out


def test_a_limit_that_is_not_reached_leaves_nothing_behind() -> None:
    with time_limit(time.monotonic() + 60):
        pass
    with pytest.raises(TimeIsUp), time_limit(time.monotonic() + 0.3):
        asyncio.run(asyncio.sleep(30))


def test_transports_are_said_to_the_probe_only(monkeypatch) -> None:
    import os

    monkeypatch.setenv("UCX_TLS", "rc")
    with transports("tcp,self"):
        assert os.environ["UCX_TLS"] == "tcp,self"
    assert os.environ["UCX_TLS"] == "rc"
    with transports(None):
        assert os.environ["UCX_TLS"] == "rc"


def test_a_model_without_a_tokenizer_is_one_line(command, capsys) -> None:
    assert command("--arm", "default-16") == 1
    assert "give --tokenizer DIR" in capsys.readouterr().out


def test_packing_twice_gives_the_newest(tmp_path: Path) -> None:
    folder = tmp_path / "arm"
    folder.mkdir()
    for value in (1, 2):
        (folder / "a.json").write_text(json.dumps(value))
        pack(folder, tmp_path)
    with tarfile.open(tmp_path / "arm.tar.gz") as packed:
        content = packed.extractfile("arm/a.json")
        assert content is not None
        assert json.load(content) == 2


def test_a_pack_that_is_cut_short_leaves_the_earlier_one(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "arm"
    folder.mkdir()
    (folder / "a.json").write_text("1")
    pack(folder, tmp_path)

    def ring(*_: object, **__: object) -> None:
        raise TimeIsUp

    monkeypatch.setattr(tarfile.TarFile, "add", ring)
    with pytest.raises(TimeIsUp):
        pack(folder, tmp_path)
    with tarfile.open(tmp_path / "arm.tar.gz") as packed:
        assert packed.getnames() == ["arm", "arm/a.json"]
