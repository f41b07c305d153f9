"""What is asked of a router: a real one, none, and things that are not one."""

from __future__ import annotations

import asyncio
import http.server
import threading

import httpx
import pytest

from stack.experiment.target import Asker, EarlyChoices, TargetError
from stack.router.stub_engine import Reply


@pytest.fixture
def other():
    """An HTTP server that is no router: path → (status, body)."""
    answers: dict[str, tuple[int, str]] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, "nothing"))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield answers, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_router_tells_model_modes_and_engines(deployment):
    with Asker(deployment.url + "/") as asker:
        target = asker.target()
    assert (target.url, target.model) == (deployment.url, "D0")
    assert set(target.modes) >= {"push", "pull"}
    assert target.engines == {"P0": "prefill", "D0": "decode"}
    assert target.max_model_len is None


def test_the_model_limit_is_read(other):
    answers, url = other
    answers["/ready"] = 200, '{"ready": true, "modes": ["push"]}'
    answers["/v1/models"] = 200, '{"data": [{"id": "m", "max_model_len": 4096, "root": "/models/m"}]}'
    answers["/metrics"] = 200, ""
    with Asker(url) as asker:
        target = asker.target()
    assert (target.max_model_len, target.model_path, target.engines) == (4096, "/models/m", {})


def test_nobody_there():
    with Asker("http://127.0.0.1:1") as asker, pytest.raises(TargetError, match="cannot reach a router") as caught:
        asker.target()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x", "http://"])
def test_what_is_no_url(url):
    with pytest.raises(TargetError, match="is not an http"):
        Asker(url)


@pytest.mark.parametrize(
    ("ready", "models", "problem"),
    [
        ((404, "{}"), (200, "{}"), "answered HTTP 404; is this a kvpath router"),
        ((200, "hello"), (200, "{}"), "did not answer with JSON"),
        ((200, "[]"), (200, "{}"), "did not answer with JSON"),
        ((503, '{"ready": false, "reasons": ["no healthy engine"]}'), (200, "{}"), "not ready: no healthy engine"),
        ((503, '{"ready": false}'), (200, "{}"), "does not say why"),
        ((200, '{"ready": true}'), (200, '{"data": []}'), "names no model"),
    ],
)
def test_what_is_no_router_or_not_ready(other, ready, models, problem):
    answers, url = other
    answers.update({"/ready": ready, "/v1/models": models})
    with Asker(url) as asker, pytest.raises(TargetError, match=problem):
        asker.target()


def test_early_choices_are_counted(other):
    answers, url = other
    answers["/metrics"] = (
        200,
        "# TYPE kvpath_router_early_choices counter\n"
        'kvpath_router_early_choices_total{outcome="kept"} 5.0\n'
        'kvpath_router_early_choices_total{outcome="regretted"} 2.0\n',
    )
    with Asker(url) as asker:
        assert asker.early_choices() == EarlyChoices(5, 2)


def test_a_real_push_is_an_early_choice(deployment):
    def after_p(_) -> Reply:
        late = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, late.set)
        return Reply(hold=late)

    deployment.decode.choose_reply = after_p
    with Asker(deployment.url) as asker:
        before = asker.early_choices()
        body = {"prompt": "natural text", "max_tokens": 1}
        answer = httpx.post(deployment.url + "/v1/completions", json=body, headers={"x-kvpath-mode": "push"})
        assert answer.status_code == 200
        assert asker.early_choices().since(before) == EarlyChoices(1, 0)


def test_no_metrics_no_choices():
    with Asker("http://127.0.0.1:1") as asker:
        assert asker.early_choices() == EarlyChoices()


def test_counts_of_a_restarted_router_start_again():
    assert EarlyChoices(9, 4).since(EarlyChoices(5, 4)) == EarlyChoices(4, 0)
    assert EarlyChoices(2, 1).since(EarlyChoices(5, 4)) == EarlyChoices(2, 1)
