"""One document an arm: what was measured, without a path of the host."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from stack.experiment.gpu_result import arm_document, write_result

RESULTS = Path(__file__).parents[3] / "stack" / "experiment" / "results"


def arm(tmp_path: Path, **files: object) -> Path:
    folder = tmp_path / "work" / "tcp-16"
    (folder / "ab").mkdir(parents=True)
    for name, document in files.items():
        place = folder / name.replace("__", "/").replace("_", "-")
        place.with_suffix(".json").write_text(json.dumps(document))
    return folder


def test_a_document_has_the_form_of_those_in_the_repository(tmp_path: Path) -> None:
    files = ("done", "ab__environment", "ab__plan", "ab__probe", "probe_other_block_sizes", "same_text", "ab__result")
    folder = arm(tmp_path, **{name: {"is": name} for name in files})
    recorded = json.loads((RESULTS / "h200-host-16.json").read_text())
    document = arm_document(folder)
    assert list(document) == list(recorded)
    assert (document["arm"], document["result"]) == ("tcp-16", {"is": "ab__result"})


def test_no_path_of_the_host_is_in_it(tmp_path: Path) -> None:
    said = {"argv": [sys.executable, "--model", str(tmp_path / "work" / "models" / "m")]}
    folder = arm(tmp_path, ab__environment=said, ab__result={})
    assert arm_document(folder)["environment"]["argv"] == ["python3", "--model", "RUN/models/m"]


def test_an_arm_that_was_cut_short_lacks_what_comes_last(tmp_path: Path) -> None:
    folder = arm(tmp_path, ab__plan={})
    write_result(folder, tmp_path)
    assert not (tmp_path / "tcp-16.json").exists(), "nothing was measured"
    (folder / "ab" / "result.json").write_text("{}")
    write_result(folder, tmp_path)
    assert list(json.loads((tmp_path / "tcp-16.json").read_text())) == ["arm", "plan", "result"]


def test_the_tracing_arm_has_its_costs(tmp_path: Path) -> None:
    document = arm_document(arm(tmp_path, environment={"gpu": "x"}, overhead={"costs": []}))
    assert list(document) == list(json.loads((RESULTS / "h200-tracing.json").read_text()))


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_a_result_in_the_repository_names_no_folder_of_its_host(file: Path) -> None:
    text = file.read_text()
    assert not [word for word in ("/root/", "/tmp/", "/home/") if word in text]
