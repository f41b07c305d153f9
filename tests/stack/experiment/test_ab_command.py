"""``kvpath ab``: plan, run, resume; one clear line and exit status 2 for what cannot be."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stack.__main__ import main
from stack.experiment.run_folder import RunFolder
from stack.experiment.step import PROMPT

IN_BACKGROUND = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")  # as a shell starts `command &`: SIGINT ignored
ROOT = Path(__file__).parents[3]
SMALL = [
    "--rates",
    "400",
    "--input-tokens",
    "20",
    "--output-tokens",
    "4",
    "--requests",
    "2",
    "--blocks",
    "2",
    "--no-probe",
]


def run(*arguments: str) -> int:
    return main(["ab", *arguments])


@pytest.fixture
def small(deployment, tmp_path):
    """Arguments of a run that takes a moment."""
    return [*SMALL, "--router", deployment.url, "--traces", deployment.store_url, "--out", str(tmp_path / "run")]


def refused(capsys, *arguments: str) -> str:
    """Runs, and returns the one line that it must end with."""
    assert run(*arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("kvpath ab: ")
    return lines[0]


def test_the_dry_run_prints_plan_and_published_values_and_asks_nobody(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("--preset", "seed", "--dry-run", "--router", "http://127.0.0.1:1") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "TTFT 1744 ms pull" in printed
    assert "TTFT 540 ms push" in printed
    assert "8 req/s, about 16384 tokens in, 128 out: 240 requests a block" in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("preset", ["seed", "reuse"])
def test_the_dry_run_refuses_a_probe_that_is_none(preset, capsys, tmp_path):
    absent, other = tmp_path / "nofile.json", tmp_path / "other.json"
    other.write_text("{}")
    for path in (absent, other):
        assert path.name in refused(capsys, "--preset", preset, "--dry-run", "--probe", str(path))


def test_the_dry_run_as_json(capsys):
    assert run("--preset", "seed", "--dry-run", "--json", "--seed", "5") == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["seed"], len(plan["cells"]), len(plan["blocks"])) == (5, 16, 16 * 14)


def test_the_dry_run_of_reuse_tells_of_both_states_of_ps_cache(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("--preset", "reuse", "--dry-run", "--turns", "4", "--gap", "7.5", "--new-tokens", "33") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("of 4 turns, 256 tokens of context, 33 new a turn, 7.5 s between turns") == 2
    assert "P's prefix cache is off, D's is off" in printed
    assert "P's prefix cache is on, D's is off" in printed
    assert "TTFT 2334 ms pull" in printed
    assert run("--preset", "reuse", "--dry-run", "--json", "--prefill-cache", "on") == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert plan["prefill_cache"] == "on"
    assert not list(tmp_path.iterdir())


TALK = ["--preset", "reuse", "--turns", "2", "--gap", "0", "--new-tokens", "5"]


def test_reuse_on_a_router_that_runs_already(small, capsys):
    assert run(*small, *TALK, "--prefill-cache", "off", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["arms"], result["prefill_cache"]) == (["reuse", "pull"], "off")
    assert result["cells"][0]["verdict"]["saving"]["lookups"] == {"hit": 4}


def test_the_dry_run_needs_neither_numpy_nor_vllm():
    code = (
        "import sys; from stack.__main__ import main; main(['ab', '--preset', 'seed', '--dry-run']); "
        "print([name for name in sys.modules if name.split('.')[0] in ('numpy', 'scipy', 'vllm', 'torch')])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "[]"


def test_a_whole_run(small, capsys, tmp_path):
    assert run(*small) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines()[:-1])) <= 80  # the last line names the folder
    assert "Verdict" in printed
    assert "block 6/6 push" in printed
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "plan.json",
        "environment.json",
        "requests.jsonl",
        "paths.jsonl",
        "blocks.jsonl",
        "result.json",
    }


def test_a_whole_run_as_json(small, capsys):
    assert run(*small, "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["arms"] == ["push", "pull"]
    assert "block 6/6" in printed.err


def test_an_a_a_run(small, capsys):
    assert run(*small, "--modes", "push,push", "--json") == 0
    assert json.loads(capsys.readouterr().out)["arms"] == ["push A", "push B"]


def test_resuming_a_finished_run_shows_its_result_again(small, capsys, deployment, tmp_path):
    assert run(*small, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    sent = len(deployment.prefill.requests)
    where = ["--router", deployment.url, "--traces", deployment.store_url, "--out", str(tmp_path / "run"), "--no-probe"]
    assert run(*where, "--resume", "--json") == 0
    assert json.loads(capsys.readouterr().out) == first
    assert len(deployment.prefill.requests) == sent


def test_prompts_from_a_file(small, capsys, jsonl, deployment):
    path = jsonl({"prompt": "one"}, {"prompt": "two", "output_tokens": 3})
    arguments = [a for a in small if a not in ("--input-tokens", "20")]
    deployment.decode.requests.clear()
    assert run(*arguments, "--prompts", str(path), "--json") == 0
    sent = {(r.body["prompt"], r.body["max_tokens"]) for r in deployment.decode.requests}
    assert sent - {(PROMPT, 1)} == {("one", 4), ("two", 3)}  # the step lets P see the end of a pull
    capsys.readouterr()
    assert "give it again with --prompts" in refused(capsys, *arguments[-6:], "--resume")
    path.write_text('{"prompt": "another"}\n')
    folder = arguments[-6:]
    assert "is not the file" in refused(capsys, *folder, "--resume", "--prompts", str(path))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--preset", "nothing"], "there is no preset 'nothing'; there are demo, seed"),
        (["--modes", "pull,reuse"], "reuse is about a conversation's next turn"),
        (["--turns", "3"], "push has presets of its own"),
        (["--preset", "reuse", "--modes", "push,reuse"], "push has presets of its own"),
        (["--preset", "reuse", "--new-tokens", "0"], "a turn must bring something new"),
        (["--preset", "reuse", "--gap", "-1"], "--gap at least 0"),
        (["--router", "http://127.0.0.1:1", *TALK, "--prefill-cache", "both"], "a running router has one or the other"),
        (["--router", "http://127.0.0.1:1"], "cannot reach a router at http://127.0.0.1:1"),
        (["--router", "nonsense"], "'nonsense' is not an http"),
        (["--blocks", "0"], "--blocks must be 1 to"),
        (["--rates", "-1"], "positive number"),
        (["--prompts", "/nowhere/prompts.jsonl"], "cannot read /nowhere/prompts.jsonl"),
        (["--resume", "--out", "/nowhere"], "/nowhere holds no experiment to resume"),
    ],
)
def test_what_cannot_be_run(capsys, tmp_path, monkeypatch, arguments, problem):
    monkeypatch.chdir(tmp_path)
    assert problem in refused(capsys, *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments", [["--modes", "push"], ["--modes", "push,plain"], ["--rates", "a"], ["--input-tokens", "1.5"]]
)
def test_options_of_the_wrong_form(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2
    assert "argument --" in capsys.readouterr().err


def test_an_empty_prompts_file(capsys, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    assert "has no prompts" in refused(capsys, "--prompts", str(tmp_path / "empty.jsonl"))


def test_a_link_probe_from_a_file(small, capsys, tmp_path):
    arguments = [a for a in small if a != "--no-probe"]
    path = tmp_path / "probe.json"
    path.write_text("{}")
    assert "is not the JSON of `kvpath probe`" in refused(capsys, *arguments, "--probe", str(path))
    assert not (tmp_path / "run").exists()
    probe = {"schema": "kvpath.probe/1", "results": [], "transport": {"READ": {"name": "tcp", "emulated": True}}}
    path.write_text(json.dumps(probe))
    assert run(*arguments, "--probe", str(path), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["probe"] == probe
    assert result["verdict"]["headline"].startswith("This comparison is about the transport")


def test_a_prompt_longer_than_the_model_takes(small, capsys, deployment, tmp_path):
    from stack.router.stub_engine import Reply

    long = b'{"error": {"message": "This model\'s maximum context length is 16 tokens"}}'
    deployment.prefill.reply = deployment.decode.reply = Reply(status=400, body=long)
    assert run(*small) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "maximum context length is 16 tokens" in line


def test_a_folder_in_use_and_another_plan(small, capsys, tmp_path):
    assert run(*small) == 0
    capsys.readouterr()
    rows = (tmp_path / "run" / "requests.jsonl").read_bytes()
    assert "already holds an experiment" in refused(capsys, *small)
    assert "is another plan" in refused(capsys, *small, "--resume", "--seed", "9")
    plan = tmp_path / "run" / "plan.json"
    plan.write_text(plan.read_text().replace("kvpath.experiment/1", "kvpath.experiment/0"))
    assert "was written in format 'kvpath.experiment/0'" in refused(capsys, *small, "--resume")
    assert (tmp_path / "run" / "requests.jsonl").read_bytes() == rows


def test_control_c_keeps_what_is_finished_and_resume_goes_on(deployment, tmp_path):
    out = str(tmp_path / "run")
    command = [*IN_BACKGROUND, sys.executable, "-m", "stack", "ab", "--out", out]
    command += ["--router", deployment.url, "--traces", "none"]
    slow = ["--rates", "400", "--requests", "2", "--blocks", "400", "--no-probe", "--input-tokens", "5"]
    with subprocess.Popen([*command, *slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("block 5/"):
                process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
    assert process.returncode == 1, errors
    # Python may have remarked before on a coroutine that the interrupt kept from starting.
    assert errors.splitlines()[-1] == f"kvpath ab: interrupted; finished blocks are kept: --resume --out {out}"
    folder = RunFolder.open(tmp_path / "run")
    done = len(folder.blocks())
    assert done >= 5
    assert len(folder.requests()) >= 2 + 2 * 3
    with subprocess.Popen([*command, "--resume", "--no-probe"], stdout=subprocess.PIPE, text=True) as process:
        resumed = next(line for line in process.stdout if line.startswith("block "))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert resumed.startswith(f"block {done + 1}/")


@pytest.mark.parametrize("package", ["numpy", "scipy"])
def test_statistics_that_are_not_installed(package, tmp_path):
    code = f"import sys; sys.modules['{package}'] = None; from stack.__main__ import main; sys.exit(main(['ab']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr == f"kvpath ab: the statistics need {package}: pip install 'kvpath[experiment]'\n"
    assert not list(tmp_path.iterdir())
