"""The arms differ in what they are about, and their engines fit on one GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack.engines.command_line import GIB, engine_argv, engine_env, kv_transfer_config
from stack.engines.settings import DeploymentSettings, engine_specs
from stack.experiment.gpu_arms import ARMS, MAX_MODEL_LEN, UPSTREAM, VARIANTS, Arm, variant_settings
from stack.experiment.plan import Changes, make_plan
from stack.experiment.presets import GPU1

GPU_GIB = 139
WEIGHTS_GIB, OTHER_GIB = 13.7, 3.0  # context, graphs, activations of an engine
HOST_GIB = 128
MODEL = Path("/models/m")


@pytest.mark.parametrize("arm", ARMS.values(), ids=lambda arm: arm.name)
def test_both_engines_of_an_arm_fit_on_the_gpu_and_its_host(arm: Arm) -> None:
    specs = engine_specs(arm.settings(MODEL, Path("run"), dummy=True), MODEL)
    assert sum(WEIGHTS_GIB + OTHER_GIB + (spec.gpu_kv_cache_gib or 0) for spec in specs) < GPU_GIB
    if arm.kv_buffer_device == "cpu":  # a buffer for each child of the switch
        assert sum(2 * (spec.gpu_kv_cache_gib or 0) for spec in specs) < HOST_GIB / 2
    assert (specs[0].gpu_kv_cache_gib or 0) * GIB > 2 * MAX_MODEL_LEN * 36 * 2 * 8 * 128 * 2, "two of the longest"


def test_an_arm_is_what_its_name_says() -> None:
    for name, arm in ARMS.items():
        prefill, decode = engine_specs(arm.settings(MODEL, Path("run"), dummy=False), MODEL)
        transport, block_size = name.split("-")
        for spec in (prefill, decode):
            assert spec.block_size == int(block_size)
            assert engine_env(spec).get("UCX_TLS") == ("tcp,cuda_copy,self" if transport == "tcp" else None)
            assert kv_transfer_config(spec).get("kv_buffer_device") == ("cpu" if transport == "host" else None)
            assert "--enforce-eager" not in engine_argv(spec)
        assert arm.preset().block_size == int(block_size)


def test_the_preset_offers_four_lengths_and_several_rates_and_short_arms_a_part_of_it() -> None:
    whole = make_plan(ARMS["default-16"].preset())
    assert {cell.input_tokens for cell in whole.cells} == {512, 4096, 8192, 16384}
    assert len({cell.rate for cell in whole.cells}) >= 3
    assert {cell.output_tokens for cell in whole.cells} == {64}
    short = make_plan(ARMS["tcp-16"].preset())
    assert short.cells == whole.cells[: len(short.cells)]
    assert {4096, 16384} <= {cell.input_tokens for cell in short.cells}


def test_asking_for_other_figures_leaves_the_presets_combinations() -> None:
    plan = make_plan(GPU1, Changes(rates=(1.0,), input_tokens=(2048, 4096)))
    assert [(cell.input_tokens, cell.rate) for cell in plan.cells] == [(2048, 1.0), (4096, 1.0)]
    assert len(make_plan(GPU1, Changes(blocks=7)).cells) == len(GPU1.loads)


@pytest.fixture
def variants() -> dict[str, DeploymentSettings]:
    return {
        name: variant_settings(MODEL, Path("run"), upstream_tracing=False, number=number, variant=name)
        for number, name in enumerate(VARIANTS)
    }


def test_three_deployments_fit_beside_each_other_on_the_gpu(variants: dict[str, DeploymentSettings]) -> None:
    specs = [spec for settings in variants.values() for spec in engine_specs(settings, MODEL)]
    assert len(specs) == 6
    assert sum(WEIGHTS_GIB + OTHER_GIB + (spec.gpu_kv_cache_gib or 0) for spec in specs) < GPU_GIB
    assert sum(spec.gpu_memory_utilization for spec in specs) < 1
    ports = [port for spec in specs for port in spec.ports]
    ports += [port for settings in variants.values() for port in (settings.router_port, settings.store_port)]
    assert len(set(ports)) == len(ports)


def test_the_baseline_is_upstreams_connector_without_tracing(variants: dict[str, DeploymentSettings]) -> None:
    for name, settings in variants.items():
        for spec in engine_specs(settings, MODEL):
            assert (spec.otlp_endpoint is None) is (name == UPSTREAM)
            assert (kv_transfer_config(spec)["kv_connector"] == "NixlPushConnector") is (name == UPSTREAM)
    traced = variant_settings(MODEL, Path("run"), upstream_tracing=True, number=0, variant=UPSTREAM)
    assert traced.engine_tracing
