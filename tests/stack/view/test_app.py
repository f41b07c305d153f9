"""The page's HTTP face: headers, policies, data, errors in the OpenAI shape."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from stack.analysis.source import SourceError
from stack.analysis.synthetic import pull_trace, push_trace
from stack.store.testing import served
from stack.view.app import create_app
from stack.view.feed import FileFeed


@pytest.fixture(scope="module")
def client():
    traces = [push_trace(number=1), pull_trace(number=2)]
    with served(create_app(FileFeed(Path("t.json"), traces))) as url, httpx.Client(base_url=url) as client:
        yield client


def test_the_page_allows_nothing_from_elsewhere_and_nothing_inline(client):
    answer = client.get("/", follow_redirects=True)
    assert answer.url.path == "/view/"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert "@@" not in answer.text
    for name, kind in (("page.js", "text/javascript"), ("page.css", "text/css")):
        piece = client.get(f"/view/{name}")
        assert piece.headers["content-type"].startswith(kind)
        assert piece.headers["x-content-type-options"] == "nosniff"
        assert "http://" not in piece.text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in piece.text


def test_requests_and_one_request(client):
    listed = client.get("/view/api/requests").json()
    assert [row["request_id"] for row in listed["requests"]] == ["req-1", "req-2"]
    assert listed["left"] == 0
    for wanted in ("req-2", f"{2:032x}"):
        assert client.get(f"/view/api/requests/{wanted}").json()["row"]["mode"] == "pull"


def test_the_comparison_of_the_newest(client):
    whole = client.get("/view/api/comparison").json()
    assert whole["traces"] == 2
    assert client.get("/view/api/comparison?newest_s=60").json()["traces"] == 2
    assert client.get("/view/api/comparison?newest_s=-1").status_code == 422


def test_an_unknown_request_is_an_error_of_one_line(client):
    answer = client.get("/view/api/requests/nope")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"
    assert "\n" not in answer.json()["error"]["message"]


def test_a_source_that_fails_is_an_error_that_says_so():
    class Broken:
        name = empty = "broken"

        def newest(self):
            raise SourceError("cannot reach the trace store at x; is it running?")

        def load(self, trace_id):
            raise AssertionError(trace_id)

    with served(create_app(Broken())) as url:
        answer = httpx.get(f"{url}/view/api/requests")
    assert answer.status_code == 503
    assert "is it running?" in answer.json()["error"]["message"]
