from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from stack.probe import command
from stack.probe.command import add_arguments, address, delay, device, run, seconds, shape_from
from stack.probe.shape import BlockShape


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(argv)


SHAPE = ("--layers", "2", "--kv-heads", "1", "--head-size", "32")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7700", ("127.0.0.1", 7700)),
        ("0.0.0.0:7700", ("0.0.0.0", 7700)),
        ("host.example:1", ("host.example", 1)),
        ("[::1]:7700", ("::1", 7700)),
    ],
)
def test_addresses_are_on_loopback_unless_they_say_otherwise(text: str, expected: tuple[str, int]) -> None:
    assert address(text) == expected


@pytest.mark.parametrize(
    ("parse_one", "text"),
    [
        *((address, text) for text in ("host", ":1", "host:", "host:70000", "host:x")),
        *((device, text) for text in ("gpu", "cuda", "cuda:x", "cpu:0")),
        *((delay, text) for text in ("-1", "on", "1.5")),
        *((seconds, text) for text in ("0", "-1", "inf", "x")),
    ],
)
def test_what_cannot_be_is_a_usage_error(parse_one: Any, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        parse_one(text)


def test_options_win_over_the_model(tmp_path: Path) -> None:
    model = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    (tmp_path / "config.json").write_text(json.dumps(model))
    args = parse("--model", str(tmp_path), "--layers", "4", "--dtype", "float32", "--block-size", "32")
    assert shape_from(args) == BlockShape(layers=4, kv_heads=3, head_size=64, dtype="float32", block_size=32)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "give the blocks' shape: --model DIR, or also --layers, --kv-heads, --head-size"),
        (("--layers", "2"), "or also --kv-heads, --head-size"),
        (("--model", "/does/not/exist"), "cannot read the configuration of /does/not/exist"),
        ((*SHAPE, "--tensor-parallel-size", "2"), "goes with --model"),
        ((*SHAPE, "--wait", "5"), "--wait belongs to --listen"),
        ((*SHAPE, "--num-threads", "-1"), "num_threads must be"),
        (("--listen", "0", "--tokens", "5"), "--tokens belongs to the side that connects"),
        (("--listen", "0", "--json"), "--json belongs to the side that connects"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "interrupt_on_termination", lambda: None)  # it would change this process's signals
    assert run(parse(*argv)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("kvpath probe: ")
    assert error.count("\n") == 1


def test_a_failed_probe_is_one_line_and_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "interrupt_on_termination", lambda: None)
    assert run(parse("--layers", "10000", "--kv-heads", "64", "--head-size", "256", "--tokens", "1000000")) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ((), {}),
        (("--progress-delay-us", "off"), {"progress_delay_us": None}),
        (("--layout", "fragmented"), {"layouts": ("fragmented",)}),
    ],
)
def test_only_what_was_given_is_passed_on(
    argv: tuple[str, ...], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passed: dict[str, Any] = {}

    def record(*positional: Any, **named: Any) -> dict[str, Any]:
        passed.update(named)
        return {"schema": "kvpath.probe/1"}

    monkeypatch.setattr(command, "interrupt_on_termination", lambda: None)
    monkeypatch.setattr(command, "run_probe", record)
    assert run(parse(*SHAPE, *argv, "--json")) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": "kvpath.probe/1"}
    always = {"connect", "device", "timeout_s", "progress"}
    assert {name: value for name, value in passed.items() if name not in always} == expected
