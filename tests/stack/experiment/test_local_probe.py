"""The probe of an experiment: a file's, this host's, or a reason why there is none."""

from __future__ import annotations

import json

import pytest

from stack.experiment.errors import ExperimentError
from stack.experiment.local_probe import local_probe, read_probe
from stack.experiment.plan import make_plan
from stack.experiment.presets import DEMO, SEED
from stack.experiment.target import Target

PROBE = {"schema": "kvpath.probe/1", "results": [], "transport": {}, "notes": []}


def target(path):
    return Target("http://127.0.0.1:8000", "m", ("push", "pull"), model_path=path)


def test_engines_with_devices_of_their_own_are_probed_by_hand(tmp_path):
    with pytest.raises(ExperimentError, match="give --probe FILE"):
        local_probe(target(str(tmp_path)), make_plan(SEED))


@pytest.mark.parametrize("path", [None, "/nowhere/model"])
def test_a_model_that_is_not_here(path):
    with pytest.raises(ExperimentError, match="its directory is not on this host"):
        local_probe(target(path), make_plan(DEMO))


def test_a_model_that_is_none(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ExperimentError, match=r"the probe failed: .*num_hidden_layers"):
        local_probe(target(str(tmp_path)), make_plan(DEMO))


def test_a_probe_from_a_file(tmp_path):
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(PROBE))
    assert read_probe(path) == PROBE


@pytest.mark.parametrize(
    "content", ["", "[]", '{"schema": "kvpath.probe/0", "results": []}', '{"schema": "kvpath.probe/1"}']
)
def test_a_file_that_is_no_probe(tmp_path, content):
    path = tmp_path / "probe.json"
    path.write_text(content)
    with pytest.raises(ExperimentError, match="is not the JSON of `kvpath probe`") as caught:
        read_probe(path)
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ExperimentError, match="cannot read"):
        read_probe(tmp_path / "none.json")
