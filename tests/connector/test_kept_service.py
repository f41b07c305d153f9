from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from connector import kept_service
from connector.kept import Kept, KeptLedger
from connector.kept_service import KeptService, KeptServiceError

PARAMS = {"remote_block_ids": [[1, 2, 3]], "remote_engine_id": "e"}


@pytest.fixture
def ledger() -> KeptLedger:
    return KeptLedger(10, clock=lambda: 0.0)


@pytest.fixture
def service(ledger: KeptLedger) -> Iterator[KeptService]:
    service = KeptService(ledger, "127.0.0.1", 0)
    yield service
    service.close()


def connect(service: KeptService) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", service.port, timeout=5)


def get(connection: http.client.HTTPConnection, path: str) -> tuple[int, Any]:
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_what_is_kept_is_told_over_one_connection(service: KeptService, ledger: KeptLedger) -> None:
    ledger.add("d-1", Kept("a/b c", PARAMS, 90, 3, 12.5))
    connection = connect(service)
    assert get(connection, "/kept/a%2Fb%20c") == (200, {"params": PARAMS, "tokens": 90, "expires_in_s": 12.5})
    ledger.forget(["d-1"])
    status, body = get(connection, "/kept/a%2Fb%20c")
    assert status == 404
    assert set(body["error"]) == {"message", "type", "param", "code"}
    connection.close()


@pytest.mark.parametrize("path", ["/kept/", "/kept", "/", "/other/rid", "/kept/rid/more"])
def test_anything_else_is_not_there(service: KeptService, ledger: KeptLedger, path: str) -> None:
    ledger.add("d-1", Kept("rid", PARAMS, 90, 3, 12.5))
    connection = connect(service)
    assert get(connection, path)[0] == 404
    connection.close()


def test_other_methods_are_refused(service: KeptService) -> None:
    connection = connect(service)
    connection.request("DELETE", "/kept/rid")
    assert connection.getresponse().status == 501
    connection.close()


def test_a_port_that_is_taken_is_one_clear_error(service: KeptService, ledger: KeptLedger) -> None:
    with pytest.raises(KeptServiceError, match=rf"127\.0\.0\.1:{service.port}.*kvpath_kept_port"):
        KeptService(ledger, "127.0.0.1", service.port)


def test_connections_are_bounded(ledger: KeptLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_service, "MAX_CONNECTIONS", 1)
    service = KeptService(ledger, "127.0.0.1", 0)
    first = connect(service)
    assert get(first, "/kept/rid")[0] == 404
    with socket.create_connection(("127.0.0.1", service.port), timeout=5) as second:
        assert second.recv(1) == b"", "closed at once"
    assert get(first, "/kept/rid")[0] == 404
    first.close()
    service.close()


def test_closing_does_not_wait_for_open_connections(ledger: KeptLedger) -> None:
    service = KeptService(ledger, "127.0.0.1", 0)
    connection = connect(service)
    get(connection, "/kept/rid")
    service.close()
    connection.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", service.port), timeout=5)
