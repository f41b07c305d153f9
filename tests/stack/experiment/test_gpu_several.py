"""Arms on several GPUs: who sees and takes which, that it fits, and that another machine goes on where one ended."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from stack.engines.command_line import GIB, EngineSpec, engine_argv, engine_env
from stack.engines.settings import engine_specs
from stack.experiment import gpu
from stack.experiment.gpu_several import SEVERAL_ARMS, Placement, SeveralArm, placement_of
from stack.experiment.gpu_transport import preset_of
from stack.experiment.plan import make_plan
from stack.experiment.presets import GPU2

GPU_GIB = 139
WEIGHTS_GIB, OTHER_GIB = 59.0, 6.0  # context, graphs, activations
MODEL = Path("/models/m")
KV_BYTES_A_TOKEN = 64 * 2 * 8 * 128 * 2


def specs(arm: SeveralArm, placement: Placement) -> dict[str, EngineSpec]:
    return {spec.role: spec for spec in engine_specs(arm.settings(MODEL, Path("run"), placement), MODEL)}


def option(spec: EngineSpec, name: str) -> str:
    argv = engine_argv(spec)
    return argv[argv.index(name) + 1]


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    gpu.add_arguments(parser)
    return parser.parse_args(argv)


@pytest.mark.parametrize(
    ("options", "prefill", "decode"),
    [
        (("--gpus", "2"), "0,1", "1,0"),
        (("--gpus", "8"), "0,1,2,3,4,5,6,7", "4,5,6,7,0,1,2,3"),
        (("--gpus", "4", "--prefill-tp", "1", "--decode-tp", "2"), "0,1,2", "1,2,0"),
        (("--gpus", "2", "--own-gpus-only"), "0", "1"),
    ],
)
def test_each_engine_sees_its_own_gpus_first(options, prefill, decode) -> None:
    placement = placement_of(parsed(*options))
    engines = specs(SEVERAL_ARMS["gpu2"], placement)
    assert engine_env(engines["prefill"])["CUDA_VISIBLE_DEVICES"] == prefill
    assert engine_env(engines["decode"])["CUDA_VISIBLE_DEVICES"] == decode
    assert option(engines["prefill"], "--tensor-parallel-size") == str(placement.prefill)
    assert option(engines["decode"], "--tensor-parallel-size") == str(placement.decode)
    taken = [
        list(visible.split(","))[:size]
        for visible, size in zip((prefill, decode), (placement.prefill, placement.decode), strict=True)
    ]
    assert not set(taken[0]) & set(taken[1])


@pytest.mark.parametrize("arm", SEVERAL_ARMS.values(), ids=lambda arm: arm.name)
def test_an_arm_fits_and_holds_its_longest_prompts(arm: SeveralArm) -> None:
    for spec in specs(arm, Placement()).values():
        kv_gib = spec.gpu_kv_cache_gib or 0
        assert WEIGHTS_GIB + OTHER_GIB + kv_gib < GPU_GIB
        longest = max(cell.longest_input + cell.output_tokens for cell in make_plan(arm.preset()).cells)
        assert longest * 1.2 < spec.max_model_len, "prompts are aimed at by characters"
        assert kv_gib * GIB > 4 * spec.max_model_len * KV_BYTES_A_TOKEN, "four of the longest at once"
        assert "--enforce-eager" not in engine_argv(spec)
        assert spec.load_format == "dummy"


def test_ds_prefix_cache_is_always_off_and_ps_is_what_the_arm_says() -> None:
    for name, arm in SEVERAL_ARMS.items():
        engines = specs(arm, Placement())
        assert "--no-enable-prefix-caching" in engine_argv(engines["decode"])
        assert ("--enable-prefix-caching" in engine_argv(engines["prefill"])) is name.endswith("-on")


def test_the_whole_published_grid_is_offered_with_its_ends_first() -> None:
    cells = make_plan(GPU2).cells
    assert {(cell.input_tokens, cell.rate) for cell in cells} == {
        (tokens, rate) for tokens in (1024, 4096, 8192, 16384) for rate in (1, 2, 4, 8)
    }
    assert (16384, 8) in {(cell.input_tokens, cell.rate) for cell in cells[:2]}
    assert {cell.output_tokens for cell in cells} == {128}
    assert {(p.metric, p.mode, p.milliseconds) for p in GPU2.published} == {
        ("ttft", "pull", 1744),
        ("ttft", "push", 540),
        ("tpot", "pull", 10.4),
        ("tpot", "push", 7),
    }


def test_reuse_is_measured_from_8k_to_24k_and_not_with_push() -> None:
    plan = make_plan(SEVERAL_ARMS["gpu2-reuse-off"].preset())
    assert [cell.input_tokens for cell in plan.cells] == [24576, 16384, 8192]
    assert plan.modes == ("reuse", "pull")


def test_a_part_of_the_loads_is_the_first_of_them() -> None:
    args = parsed("--gpus", "2", "--loads", "2")
    assert len(make_plan(preset_of(args, SEVERAL_ARMS["gpu2"])).cells) == 2
    assert len(make_plan(preset_of(args, SEVERAL_ARMS["gpu2-reuse-on"])).cells) == 2


def test_more_gpus_than_there_are_is_a_wrong_command_line(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        gpu.main(["--arm", "gpu2"])
    assert caught.value.code == 2
    assert "1 GPUs to prefill and 1 to decode are more than --gpus 1" in capsys.readouterr().err


def test_all_means_the_arms_for_that_number_of_gpus(tmp_path: Path, monkeypatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(gpu, "several_arm", lambda args, arm, folder, say: begun.append(arm.name))
    where = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    assert gpu.main(["--all", "--gpus", "2", *where]) == 0
    assert begun == ["gpu2", "gpu2-reuse-off", "gpu2-reuse-on"]


def test_another_machine_goes_on_from_what_was_packed(tmp_path: Path, monkeypatch) -> None:
    """As on hosts that are lent for minutes: the first ends in the middle of an arm, the second has an empty disk."""
    seen: list[list[str]] = []

    def arm(args, arm, folder: Path, say) -> None:
        seen.append(sorted(file.name for file in folder.iterdir()))
        (folder / f"block-{len(seen)}.json").write_text("{}")
        if len(seen) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "transport_arm", arm)
    out = str(tmp_path / "out")
    assert gpu.main(["--arm", "tcp-16", "--work", str(tmp_path / "one"), "--out", out]) == 1
    assert gpu.main(["--arm", "tcp-16", "--work", str(tmp_path / "two"), "--out", out, "--restore", out]) == 0
    assert seen == [[], ["block-1.json"]]
    # A third machine has nothing to do.
    assert gpu.main(["--arm", "tcp-16", "--work", str(tmp_path / "three"), "--out", out, "--restore", out]) == 0
    assert len(seen) == 2
