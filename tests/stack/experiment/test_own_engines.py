"""Pairs of engines that a preset starts itself: what each is started with, and what is done before any starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stack.engines.command_line import engine_argv
from stack.engines.settings import engine_specs
from stack.experiment.errors import ExperimentError
from stack.experiment.own_engines import kept_ttl_s, measure_pair, open_folders, pairs_of
from stack.experiment.plan import Changes, make_plan
from stack.experiment.presets import REUSE
from stack.experiment.run import Setup, run_experiment
from stack.experiment.run_folder import FolderError

SMALL = Changes(rates=(200.0,), input_tokens=(20,), output_tokens=2, requests=1, blocks=1, turns=2, gap_s=0.0)


def caching(pair) -> dict[str, bool]:
    return {
        spec.role: "--enable-prefix-caching" in engine_argv(spec)
        for spec in engine_specs(pair.settings(), pair.folder / "model")
    }


def test_only_ps_prefix_cache_differs_between_the_pairs(tmp_path):
    off, on = pairs_of(REUSE, SMALL, ("off", "on"), tmp_path)
    assert caching(off) == {"prefill": False, "decode": False}
    assert caching(on) == {"prefill": True, "decode": False}
    assert (off.plan.prefill_cache, on.plan.prefill_cache) == ("off", "on")
    assert replace(off.plan, prefill_cache="") == replace(on.plan, prefill_cache="")
    assert off.folder != on.folder


def test_d_keeps_blocks_longer_than_a_gap_lasts():
    assert kept_ttl_s(make_plan(REUSE, SMALL)) == 480
    assert kept_ttl_s(make_plan(REUSE, replace(SMALL, gap_s=400.0))) == 800


def test_every_folder_is_there_before_an_engine_starts_and_none_is_overwritten(tmp_path):
    pairs = pairs_of(REUSE, SMALL, ("off", "on"), tmp_path)
    assert [folder.path.name for folder in open_folders(pairs, resume=False)] == [
        "prefill-cache-off",
        "prefill-cache-on",
    ]
    with pytest.raises(FolderError, match="already holds an experiment"):
        open_folders(pairs, resume=False)
    assert len(open_folders(pairs, resume=True)) == 2
    with pytest.raises(FolderError, match="another plan"):
        open_folders(pairs_of(REUSE, replace(SMALL, blocks=3), ("off",), tmp_path), resume=True)


def test_a_pair_that_is_finished_starts_nothing(deployment, tmp_path):
    (pair,) = pairs_of(REUSE, SMALL, ("off",), tmp_path)
    (folder,) = open_folders([pair], resume=False)
    first = run_experiment(folder, Setup(deployment.url, deployment.store_url), lambda line: None)
    (again,) = open_folders([pair], resume=True)
    result = measure_pair(pair, again, pytest.fail, traces=True, probe=None, annotate=None)
    assert result.document() == first.document()


def test_a_connector_without_reuse_is_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("KVPATH_CONNECTOR", "push")
    (pair,) = pairs_of(REUSE, SMALL, ("off",), tmp_path)
    (folder,) = open_folders([pair], resume=False)
    with pytest.raises(ExperimentError, match="cannot serve reuse"):
        measure_pair(pair, folder, pytest.fail, traces=True, probe=None, annotate=None)
