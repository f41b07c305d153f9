from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from stack.probe import control
from stack.probe.control import Channel, accept, connect, listen
from stack.probe.errors import PeerError, ProbeError


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    server = listen("127.0.0.1", 0)
    near = connect("127.0.0.1", server.getsockname()[1], 5.0)
    far = accept(server, 5.0, 5.0)
    with contextlib.closing(near), contextlib.closing(far):
        yield near, far


@contextlib.contextmanager
def raw_peer(answer: bytes) -> Iterator[Channel]:
    """A channel whose peer sends ``answer`` and then says no more, but stays."""
    here, there = socket.socketpair(socket.AF_UNIX)
    channel = Channel.__new__(Channel)
    channel._socket, channel._peer, channel.timeout_s = here, "the peer", 0.2
    with contextlib.closing(there), contextlib.closing(channel):
        there.sendall(answer)
        yield channel


def message(**content: object) -> bytes:
    data = json.dumps(content).encode()
    return struct.pack(">I", len(data)) + data


def both(first: Callable[[], object], second: Callable[[], object]) -> None:
    thread = threading.Thread(target=first)
    thread.start()
    try:
        second()
    finally:
        thread.join()


def test_messages_arrive_whole_and_in_order(pair: tuple[Channel, Channel]) -> None:
    near, far = pair
    large = list(range(200_000))

    def send() -> None:
        near.send("one", value=large)
        near.send("two")

    both(send, lambda: None if far.expect("one") == {"value": large} else pytest.fail("changed"))
    assert far.receive() == ("two", {})


def test_both_sides_learn_of_each_other(pair: tuple[Channel, Channel]) -> None:
    near, far = pair
    learned: list[object] = []
    both(
        lambda: learned.append(near.greet({"host": "p"})["host"]),
        lambda: learned.append(far.greet({"host": "d"})["host"]),
    )
    assert sorted(map(str, learned)) == ["d", "p"]


def test_another_version_is_named_with_the_remedy() -> None:
    with (
        raw_peer(message(kind="hello", protocol="kvpath.probe.control/9", kvpath="7.0")) as channel,
        pytest.raises(ProbeError, match=r"speaks 'kvpath.probe.control/9'.*same kvpath on both hosts.*7\.0"),
    ):
        channel.greet({"kvpath": "0.1.0"})


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", message(no="kind"), struct.pack(">I", 3) + b"abc"]
)
def test_something_else_is_not_understood(answer: bytes) -> None:
    with raw_peer(answer) as channel, pytest.raises(ProbeError, match="does not speak the probe's protocol"):
        channel.receive()


def test_a_message_out_of_turn_is_an_error() -> None:
    with raw_peer(message(kind="moved")) as channel, pytest.raises(ProbeError, match="sent 'moved' where 'ready'"):
        channel.expect("ready")


def test_the_peer_s_own_error_is_told() -> None:
    with raw_peer(message(kind="error", message="no memory")) as channel, pytest.raises(PeerError, match="no memory"):
        channel.receive()


@pytest.mark.parametrize("part", [b"", b"\x00\x00", message(kind="x")[:-1]])
def test_silence_has_a_limit(part: bytes) -> None:
    with raw_peer(part) as channel, pytest.raises(ProbeError, match=r"was silent for 0\.2 s"):
        channel.receive()


def test_a_peer_that_leaves_is_noticed(pair: tuple[Channel, Channel]) -> None:
    near, far = pair
    far.close()
    with pytest.raises(ProbeError, match="closed the connection"):
        near.receive()


def test_nobody_there_is_one_line_with_what_to_try() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ProbeError, match=r"cannot reach 127\.0\.0\.1:\d+: Connection refused.*--listen"):
        connect("127.0.0.1", port, 1.0)


def test_a_taken_port_is_named() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ProbeError, match="cannot listen on 127"),
    ):
        listen("127.0.0.1", taken.getsockname()[1])


def test_waiting_for_a_peer_has_a_limit_and_frees_the_port() -> None:
    server = listen("127.0.0.1", 0)
    port = server.getsockname()[1]
    with pytest.raises(ProbeError, match=r"no peer connected within 0\.05 s"):
        accept(server, 0.05, 1.0)
    listen("127.0.0.1", port).close()


def test_the_length_has_a_limit() -> None:
    with raw_peer(struct.pack(">I", control.MAX_MESSAGE + 1)) as channel, pytest.raises(ProbeError, match="protocol"):
        channel.receive()
