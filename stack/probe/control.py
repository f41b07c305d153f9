"""The control channel between the two sides: JSON messages over TCP, each behind its length (4 bytes, big endian).

It carries agents' metadata, the plan and the steps; the data itself goes through NIXL. Every wait has a limit. The
first message tells the protocol's version, so that two releases that differ say so.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

from stack.probe.errors import LostPeerError, PeerError, ProbeError

PROTOCOL = "kvpath.probe.control/1"
MAX_MESSAGE = 32 * 2**20
MARGIN_S = 15.0  # the peer's own limits come first, so that it can say what was late
_LENGTH = struct.Struct(">I")


class Channel:
    """One connection to the peer. Any failure is a :class:`ProbeError`."""

    def __init__(self, connection: socket.socket, timeout_s: float, peer: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._peer = peer
        self.timeout_s = timeout_s

    def send(self, kind: str, **content: Any) -> None:
        data = json.dumps({"kind": kind, **content}).encode()
        self._socket.settimeout(self.timeout_s)
        try:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except TimeoutError:
            raise LostPeerError(f"{self._peer} took nothing for {self.timeout_s:g} s") from None
        except OSError as error:
            raise LostPeerError(f"lost the connection to {self._peer}: {error.strerror or error}") from None

    def receive(self) -> tuple[str, dict[str, Any]]:
        """Returns the next message's kind and content."""
        deadline = time.monotonic() + self.timeout_s
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if length > MAX_MESSAGE:
            raise ProbeError(f"{self._peer} does not speak the probe's protocol; is it a kvpath probe?")
        try:
            message = json.loads(self._read(length, deadline))
            kind = message.pop("kind")
        except (ValueError, AttributeError, TypeError, KeyError):
            raise ProbeError(f"{self._peer} does not speak the probe's protocol; is it a kvpath probe?") from None
        if kind == "error":
            raise PeerError(f"{self._peer}: {message.get('message')}")
        return kind, message

    def expect(self, kind: str) -> dict[str, Any]:
        """Returns the content of the next message, which must be of this kind."""
        found, content = self.receive()
        if found != kind:
            raise ProbeError(f"{self._peer} sent {found!r} where {kind!r} was due")
        return content

    def greet(self, mine: dict[str, Any]) -> dict[str, Any]:
        """Exchanges the first message, which tells version and host; raises when the versions differ."""
        self.send("hello", protocol=PROTOCOL, **mine)
        theirs = self.expect("hello")
        if theirs.get("protocol") != PROTOCOL:
            raise ProbeError(
                f"{self._peer} speaks {theirs.get('protocol')!r} and this side {PROTOCOL!r}: "
                f"install the same kvpath on both hosts (there: {theirs.get('kvpath')}, here: {mine.get('kvpath')})"
            )
        return theirs

    def _read(self, count: int, deadline: float) -> bytes:
        parts, missing = [], count
        while missing:
            left = deadline - time.monotonic()
            try:
                self._socket.settimeout(max(left, 0.001))
                part = self._socket.recv(min(missing, 2**20))
            except TimeoutError:
                raise LostPeerError(f"{self._peer} was silent for {self.timeout_s:g} s") from None
            except OSError as error:
                raise LostPeerError(f"lost the connection to {self._peer}: {error.strerror or error}") from None
            if not part:
                raise LostPeerError(f"{self._peer} closed the connection")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        self._socket.close()


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket; raises :class:`ProbeError`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1)
    except OSError as error:
        raise ProbeError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def accept(server: socket.socket, wait_s: float, timeout_s: float) -> Channel:
    """Waits at most ``wait_s`` seconds for one peer, then listens no longer."""
    server.settimeout(wait_s)
    try:
        connection, address = server.accept()
    except TimeoutError:
        raise ProbeError(f"no peer connected within {wait_s:g} s") from None
    finally:
        server.close()
    return Channel(connection, timeout_s, f"the peer at {address[0]}")


def connect(host: str, port: int, timeout_s: float) -> Channel:
    try:
        connection = socket.create_connection((host, port), timeout_s)
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or error
        raise ProbeError(
            f"cannot reach {host}:{port}: {reason}; is `kvpath probe --listen` running there, and the port open?"
        ) from None
    return Channel(connection, timeout_s, f"the peer at {host}:{port}")
