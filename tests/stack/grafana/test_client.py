"""What answers in Grafana's place: proxies with login pages, older versions, servers that break off."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stack.grafana.client import Grafana
from stack.grafana.errors import GrafanaError, UnreachableError
from stack.grafana.settings import GrafanaSettings


@contextmanager
def answering(body: str, status: int = 200, kind: str = "application/json") -> Iterator[Grafana]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with Grafana(GrafanaSettings(url=f"http://127.0.0.1:{server.server_port}", token="glsa_x")) as grafana:
                yield grafana
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("body", "kind"),
    [("<html>Please log in</html>", "text/html"), ("{", "application/json"), ("[1]", "application/json")],
)
def test_a_page_that_is_not_grafanas_is_said_to_be_none(body, kind):
    with answering(body, kind=kind) as grafana:
        for ask in (grafana.version, lambda: grafana.dashboard("a")):
            with pytest.raises(UnreachableError, match="is not Grafana's API"):
                ask()


def test_a_refusal_is_one_line_whatever_its_body_and_repeats_no_token():
    page = "<h1>Bad\nGateway</h1> glsa_x " + "x" * 1000
    with answering(page, 502, "text/html") as grafana, pytest.raises(GrafanaError) as refused:
        grafana.folder("kvpath")
    said = str(refused.value)
    assert said.startswith("cannot read folder kvpath: Grafana answers 502, <h1>Bad Gateway</h1> *** xxx")
    assert "\n" not in said
    assert len(said) < 500


def test_a_database_that_is_down_is_not_healthy():
    health = json.dumps({"database": "failing", "version": "13.0.1"})
    with answering(health) as grafana, pytest.raises(GrafanaError, match="says that its database is failing"):
        grafana.version()


def test_versions_came_as_a_list_before_grafana_12():
    versions = [{"version": 2, "message": "new"}, {"version": 1, "message": "old"}]
    with answering(json.dumps(versions)) as grafana:
        assert grafana.newest_message("a") == "new"
    with answering(json.dumps({"versions": []})) as grafana:
        assert grafana.newest_message("a") == ""
