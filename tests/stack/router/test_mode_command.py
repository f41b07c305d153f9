"""``kvpath mode`` against whole routers on real sockets."""

from __future__ import annotations

import argparse
import asyncio

import pytest

from connector import names
from stack.grafana.fake import FakeGrafana, serving
from stack.router import mode_command

VARIABLE = mode_command.TOKEN_VARIABLE


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv(VARIABLE, "secret")
    for name in ("URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"KVPATH_GRAFANA_{name}", raising=False)


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    mode_command.add_arguments(parser)
    return parser.parse_args(words)


async def kvpath_mode(*words: str) -> int:
    """Runs the command beside the router's event loop."""
    return await asyncio.to_thread(mode_command.run, parse(*words))


@pytest.fixture
async def router(start, prefill, decode):
    async with start(prefill, decode, admin_token="secret", split={names.MODE_PUSH: 100}) as running:
        yield running


def url(router) -> str:
    return f"http://127.0.0.1:{router.port}"


async def test_it_shows_the_split_and_changes_it(router, capsys):
    assert await kvpath_mode("--router", url(router)) == 0
    assert capsys.readouterr().out == "push=100\n"
    assert await kvpath_mode("push=50", "pull=50", "--router", url(router)) == 0
    assert capsys.readouterr().out == "push=100 → push=50 pull=50\n"
    assert await kvpath_mode("default", "--router", url(router) + "/") == 0
    assert capsys.readouterr().out == "push=50 pull=50 → default\n"
    assert await router.metric('kvpath_router_split_weight{mode="pull"}') == 0


async def test_the_token_may_be_in_a_file(router, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv(VARIABLE)
    (tmp_path / "token").write_text("secret\n")
    assert await kvpath_mode("pull=1", "--token-file", str(tmp_path / "token"), "--router", url(router)) == 0
    assert capsys.readouterr().out.endswith("→ pull=1\n")


async def test_several_routers_change_together_or_not_at_all(router, start, prefill, decode, capsys):
    async with start(prefill, decode, admin_token="another", split={names.MODE_PULL: 1}) as other:
        both = ("--router", url(router), "--router", url(other))
        assert await kvpath_mode("push=1", "pull=1", *both) == 1
    assert "does not accept this token" in capsys.readouterr().err
    async with start(prefill, decode, admin_token="secret", split={names.MODE_PULL: 1}) as other:
        assert await kvpath_mode("--router", url(router), "--router", url(other)) == 0
        assert capsys.readouterr().out == f"{url(router)}: push=100\n{url(other)}: pull=1\n"
        assert await kvpath_mode("push=2", "--router", url(router), "--router", url(other)) == 0
        assert capsys.readouterr().out == f"{url(router)}: push=100 → push=2\n{url(other)}: pull=1 → push=2\n"


async def test_a_wrong_token_is_one_line(router, monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "guessed")
    assert await kvpath_mode("pull=1", "--router", url(router)) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "does not accept this token" in error
    assert "guessed" not in error


async def test_a_router_without_the_endpoint_is_one_line(start, prefill, decode, capsys):
    async with start(prefill, decode, admin_token=None) as router:
        assert await kvpath_mode("pull=1", "--router", url(router)) == 1
    assert f"has no admin endpoint; start it with {VARIABLE} set" in capsys.readouterr().err


async def test_a_split_that_the_router_cannot_serve_is_wrong_usage_in_its_words(router, capsys):
    assert await kvpath_mode("reuse=1", "--router", url(router)) == 2
    error = capsys.readouterr().err
    assert "mode 'reuse' needs a prefill and a decode engine" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("router_url", ["http://127.0.0.1:1", "127.0.0.1:8000", "http://[", "ftp://x"])
async def test_no_router_is_one_line(router_url, capsys):
    assert await kvpath_mode("--router", router_url) == 1
    error = capsys.readouterr().err
    assert "cannot reach a router" in error
    assert error.count("\n") == 1


async def test_something_else_that_answers_is_one_line(capsys):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\n<html/>")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await kvpath_mode("--router", f"http://127.0.0.1:{port}") == 1
    assert "is this a kvpath router?" in capsys.readouterr().err


async def test_a_change_is_marked_in_grafana_once(router, monkeypatch, capsys):
    grafana = FakeGrafana()
    with serving(grafana) as grafana_url:
        monkeypatch.setenv("KVPATH_GRAFANA_URL", grafana_url)
        monkeypatch.setenv("KVPATH_GRAFANA_TOKEN", grafana.token)
        for _ in range(2):  # the second changes nothing
            assert await kvpath_mode("push=50", "pull=50", "--router", url(router)) == 0
    (mark,) = grafana.annotations
    assert mark["text"] == "split: push 50%, pull 50% (was push 100%)"
    assert mark["tags"] == list(names.ANNOTATION_SPLIT)
    assert capsys.readouterr().err == ""


async def test_a_grafana_that_does_not_answer_changes_nothing_else(router, monkeypatch, capsys):
    monkeypatch.setenv("KVPATH_GRAFANA_URL", "http://127.0.0.1:1")
    assert await kvpath_mode("pull=1", "--router", url(router)) == 0
    printed = capsys.readouterr()
    assert printed.out == "push=100 → pull=1\n"
    assert printed.err.startswith("kvpath mode: note: no annotation in Grafana")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["push"], "'push' is not MODE=WEIGHT"),
        (["push=x"], "'push=x' is not MODE=WEIGHT"),
        (["teleport=1"], "with a mode of push, pull, reuse, plain"),
        (["push=-1"], "weight from 0 on"),
        (["push=inf"], "weight from 0 on"),
        (["push=nan"], "weight from 0 on"),
        (["push=1", "push=2"], "push is given twice"),
        (["push=0", "pull=0"], "not all weights may be 0"),
    ],
)
def test_weights_that_make_no_sense_are_exit_code_2(words, says, capsys):
    assert mode_command.run(parse(*words)) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("content", "says"), [("", "no admin token"), ("two words", "cannot be a token")])
def test_a_token_that_makes_no_sense_is_exit_code_2(tmp_path, content, says, capsys):
    (tmp_path / "token").write_text(content)
    assert mode_command.run(parse("--token-file", str(tmp_path / "token"))) == 2
    assert says in capsys.readouterr().err


def test_no_token_at_all_is_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv(VARIABLE)
    assert mode_command.run(parse()) == 2
    assert f"set {VARIABLE}" in capsys.readouterr().err
    assert mode_command.run(parse("--token-file", str(tmp_path / "none"))) == 2
    assert "cannot read the token" in capsys.readouterr().err
