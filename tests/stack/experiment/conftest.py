"""A whole deployment without models: real router, stub engines, and a trace store that knows what the engines did."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import uvicorn

from connector import names
from stack.analysis.otlp_json import dumps
from stack.analysis.synthetic import Figures, pull_trace, push_trace, reuse_trace
from stack.experiment.load import Row
from stack.experiment.plan import Plan
from stack.experiment.run_folder import FinishedBlock
from stack.experiment.traced import PathRow, path_rows
from stack.router.app import create_app
from stack.router.settings import DECODE, PREFILL, RouterSettings
from stack.router.stub_engine import StubEngine

TRACE_OF = {names.MODE_PUSH: push_trace, names.MODE_PULL: pull_trace, names.MODE_REUSE: reuse_trace}
MODES = names.TRANSFER_MODES


class _Http(http.server.ThreadingHTTPServer):
    daemon_threads = True


@dataclass
class Deployment:
    """A running router with one P and one D. ``figures`` say, by mode, what the traces of requests show."""

    url: str
    prefill: StubEngine
    decode: StubEngine
    store_url: str = ""
    figures: dict[str, Figures] = field(default_factory=dict)

    def trace_document(self, trace_id: str) -> str | None:
        """Returns the trace of a request that P has seen, of the mode that P was asked for."""
        for request in list(self.prefill.requests):
            if request.headers.get("traceparent", "").split("-")[1:2] == [trace_id]:
                params = request.body["kv_transfer_params"]
                mode = params[names.PARAM_MODE]
                more = {}
                if mode == names.MODE_REUSE and not params.get("remote_num_tokens"):
                    more = {"outcome": names.REUSE_EDITED if "remote_num_tokens" in params else names.REUSE_MISS}
                return dumps([TRACE_OF[mode](self.figures.get(mode, Figures()), number=int(trace_id, 16), **more)])
        return None


@contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def _deployed(**settings: object) -> Iterator[Deployment]:
    with ExitStack() as stack:
        loop = stack.enter_context(_event_loop())

        def run(coroutine):
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result(10)

        stubs = [StubEngine(PREFILL, "P0", modes=MODES), StubEngine(DECODE, "D0", modes=MODES)]
        for stub in stubs:
            run(stub.start())
            stack.callback(lambda stub=stub: run(stub.stop()))
        given = {"allow_mode_header": True, "health_interval_s": 0.05, **settings}
        app = create_app(RouterSettings(engines=tuple(stub.settings for stub in stubs), **given))
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none", timeout_graceful_shutdown=1))
        serving = asyncio.run_coroutine_threadsafe(server._serve(), loop)
        stack.callback(lambda: serving.result(10))
        stack.callback(lambda: setattr(server, "should_exit", True))
        run(_until(lambda: server.started))
        port = server.servers[0].sockets[0].getsockname()[1]
        deployment = Deployment(f"http://127.0.0.1:{port}", *stubs)
        deployment.store_url = stack.enter_context(_trace_store(deployment))
        yield deployment


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.001)


@contextmanager
def _trace_store(deployment: Deployment) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            document = deployment.trace_document(self.path.rsplit("/", 1)[1])
            body = (document or "not here").encode()
            self.send_response(200 if document else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with _Http(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def running() -> Iterator[Deployment]:
    with _deployed() as deployment:
        yield deployment


@pytest.fixture
def deployment(running: Deployment) -> Iterator[Deployment]:
    """The module's deployment, with engines that answer as usual."""
    reply, choose = (running.prefill.reply, running.decode.reply), running.decode.choose_reply
    running.figures.clear()
    yield running
    running.prefill.reply, running.decode.reply = reply
    running.decode.choose_reply = choose


@pytest.fixture
def deploy() -> Callable[..., object]:
    """Deploys a router with other settings; a context manager."""
    return _deployed


@dataclass
class Recorded:
    """The rows of an experiment that was never run; ``figures(arm, pair, index)`` said what each trace holds."""

    plan: Plan
    rows: list[Row]
    paths: dict[str, PathRow]
    blocks: dict[int, FinishedBlock]


@pytest.fixture(scope="session")
def record() -> Callable[[Plan, Callable[[int, int, int], Figures]], Recorded]:
    def made(plan: Plan, figures: Callable[[int, int, int], Figures]) -> Recorded:
        rows: list[Row] = []
        paths: dict[str, PathRow] = {}
        for block in plan.blocks:
            traces = [
                TRACE_OF[block.mode](figures(block.arm, block.pair, index), number=1 + 1000 * block.index + index)
                for index in range(block.requests * plan.cells[block.cell].turns)
            ]
            for index, path in enumerate(path_rows(traces)):
                paths[path.trace_id] = path
                turn = index % plan.cells[block.cell].turns + 1
                rows.append(replace(row_of(block.index, index, block.mode, path), turn=turn))
        return Recorded(plan, rows, paths, {b.index: FinishedBlock(b.index, 1, 10.0) for b in plan.blocks})

    return made


def row_of(block: int, index: int, mode: str, path: PathRow) -> Row:
    ttft = path.ttft_ns + 300_000  # the hop from client to router
    return Row(
        block=block,
        attempt=1,
        index=index,
        prompt=index,
        mode=mode,
        scheduled_ns=index * 1_000_000_000,
        sent_ns=index * 1_000_000_000 + 50_000,
        trace_id=path.trace_id,
        status=200,
        ttft_ns=ttft,
        tpot_ns=10e6,
        total_ns=ttft + 40_000_000,
        prompt_tokens=128,
        output_tokens=5,
        gaps_ns=(10_000_000,) * 4,
    )


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Writes a prompts file."""

    def write(*documents: object, name: str = "prompts.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(document) + "\n" for document in documents))
        return path

    return write
