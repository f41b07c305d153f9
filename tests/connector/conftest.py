"""Engine processes in one process: real span pipeline and ledger, NIXL agents in memory, and no thread that drains."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from connector import names
from connector.bootstrap import Telemetry, start_telemetry
from connector.carrier import Carrier
from connector.engine_context import EngineContext
from connector.fake_agent import FakeAgent, Network
from connector.fewcores import PROGRESS_DELAY_US, progress_delay
from connector.ledger import Ledger, Losses
from connector.metrics import Metric, Samples
from connector.requests import RequestStory
from connector.runtime import OPTION_INSTANCE, Runtime
from connector.spans import PresetIds, SpanWriter
from connector.tap import NixlTap
from connector.worker_story import WorkerStory, agent_name

TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
PREFILL_LEG = 0xB7AD6B7169203331
DECODE_LEG = 0x00F067AA0BA902B7


def carrier_of(leg: int, mode: str = names.MODE_PUSH, trace_id: int = TRACE_ID, stamp_ns: int = 0) -> Carrier:
    return Carrier(f"00-{trace_id:032x}-{leg:016x}-01", mode, "rid-1", stamp_ns)


@dataclass
class Engine:
    """One engine process's telemetry. Facts are handled when a test says :meth:`Ledger.drain`."""

    context: EngineContext
    ledger: Ledger
    telemetry: Telemetry
    exporter: InMemorySpanExporter
    workers: list[Worker] = field(default_factory=list)

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        self.ledger.drain()
        self.telemetry.flush()
        found = self.exporter.get_finished_spans()
        return [span for span in found if name is None or span.name == name]

    def span(self, name: str) -> ReadableSpan:
        (found,) = self.spans(name)
        return found

    def mono(self, wall_ns: int | None) -> int:
        """A span's time on the monotonic clock that the facts were stamped with."""
        assert wall_ns is not None
        return self.context.clock.monotonic(wall_ns)

    def at(self, monotonic_ns: int) -> int:
        return self.context.clock.wall(monotonic_ns)

    def samples(self, metric: Metric) -> list[list[Any]]:
        """What was added for one metric: value and label values. Taken samples stay seen."""
        self.ledger.drain()
        self._seen = [*getattr(self, "_seen", []), *self.context.samples.take()]
        return [sample[1:] for sample in self._seen if sample[0] == metric.name]

    def worker(self, agent: str, network: Network, rank: int = 0, world_size: int = 1) -> Worker:
        worker = Worker(self, FakeAgent(agent, network), rank, world_size)
        self.workers.append(worker)
        return worker


class Worker:
    """A worker of an engine: agent, tap and story, wired as the connector wires them."""

    def __init__(self, engine: Engine, agent: FakeAgent, rank: int, world_size: int) -> None:
        self.engine = engine
        self.agent = agent
        self.ranks: dict[str, int] = {}
        self.story = WorkerStory(
            engine.context,
            rank=rank,
            world_size=world_size,
            agent=agent.name,
            rank_of=lambda name: self.ranks.get(name, -1),
        )
        engine.ledger.on_idle(self.story.idle)
        self.tap = NixlTap(agent, engine.ledger, self.story)

    def connect(self, other: Worker, rank: int = 0) -> Any:
        """What upstream does in a handshake; returns the prepared list of the other side's blocks."""
        name = self.tap.add_remote_agent(other.agent.get_agent_metadata())
        self.ranks[agent_name(name)] = rank
        return self.tap.prep_xfer_dlist(name, "blocks")


@pytest.fixture
def new_engine() -> Iterator[Callable[..., Engine]]:
    started: list[Engine] = []

    def new(engine_id: str = "engine-0", service: str = names.SERVICE_PREFILL) -> Engine:
        ids, exporter, ledger = PresetIds(), InMemorySpanExporter(), Ledger()
        telemetry = start_telemetry(service, None, instance_id=engine_id, exporter=exporter, id_generator=ids)
        writer = SpanWriter(telemetry.tracer, ids, {names.ATTR_ENGINE_ID: engine_id})
        context = EngineContext(engine_id, writer, Samples(), ledger.losses)
        started.append(Engine(context, ledger, telemetry, exporter))
        return started[-1]

    yield new
    for engine in started:
        engine.telemetry.shutdown()


@pytest.fixture
def engine(new_engine: Callable[..., Engine]) -> Engine:
    return new_engine()


@pytest.fixture
def story(engine: Engine) -> RequestStory:
    return RequestStory(engine.context)


@pytest.fixture
def pair(new_engine: Callable[..., Engine]) -> Any:
    """A :class:`tests.connector.pair.Pair` whose workers have not met."""
    from tests.connector.pair import Pair  # which imports this module

    return Pair(new_engine)


@pytest.fixture
def connected(pair: Any) -> Any:
    """The pair, each worker with a connection to the other."""
    pair.connect(pair.dw, pair.pw)
    pair.connect(pair.pw, pair.dw)
    return pair


@pytest.fixture(scope="session")
def vllm() -> Iterator[Any]:
    """vLLM itself, imported once a session (half a minute on two cores); skips where it is not installed.

    NIXL agents made in this process sleep between events: they live until it ends, and would spin both cores away
    from every test that follows.
    """
    pytest.importorskip("vllm", reason="needs vLLM: the extra 'cpu' or 'gpu'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of vLLM's own dependencies, at import
        module = importlib.import_module("connector.nixl")
    with progress_delay(module.NixlWrapper, PROGRESS_DELAY_US):
        yield module


@dataclass
class EngineTelemetry:
    """The telemetry of the in-process engines of :mod:`tests.connector.upstream`, by engine id."""

    runtimes: dict[str, Runtime] = field(default_factory=dict)
    exporters: dict[str, InMemorySpanExporter] = field(default_factory=dict)

    def runtime_of(self, vllm_config: Any) -> Any:
        transfer = vllm_config.kv_transfer_config
        engine_id = transfer.engine_id
        if engine_id not in self.runtimes:
            self.exporters[engine_id] = InMemorySpanExporter()
            with pytest.MonkeyPatch.context() as patch:
                start = functools.partial(start_telemetry, exporter=self.exporters[engine_id])
                patch.setattr("connector.runtime.start_telemetry", start)
                service = names.SERVICE_DECODE if transfer.kv_role == "kv_consumer" else names.SERVICE_PREFILL
                named = {OPTION_INSTANCE: transfer.kv_connector_extra_config.get(OPTION_INSTANCE)}
                self.runtimes[engine_id] = Runtime(service, engine_id, named)
        return Use(self.runtimes[engine_id])

    def spans(self, rid: str) -> list[ReadableSpan]:
        """All spans of one request, of all engines."""
        found: list[ReadableSpan] = []
        for engine_id, runtime in self.runtimes.items():
            runtime.ledger.drain()
            runtime.telemetry.flush()
            found += self.exporters[engine_id].get_finished_spans()
        return [span for span in found if (span.attributes or {}).get(names.ATTR_REQUEST_ID) == rid]

    @property
    def errors(self) -> int:
        for runtime in self.runtimes.values():
            runtime.ledger.drain()
        return sum(runtime.ledger.losses.errors for runtime in self.runtimes.values())

    def losses(self) -> list[Losses]:
        for runtime in self.runtimes.values():
            runtime.ledger.drain()
        return [dataclasses.replace(runtime.ledger.losses) for runtime in self.runtimes.values()]


class Use:
    """A use of a runtime that outlives its users, so that spans can be looked at afterwards."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def release(self) -> None:
        pass


@contextmanager
def separate_engines() -> Iterator[EngineTelemetry]:
    """Gives every engine id of this one process a runtime of its own, as if it were a process."""
    telemetry = EngineTelemetry()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("connector.nixl.runtime_of", telemetry.runtime_of)
        patch.setattr("connector.switch.runtime_of", telemetry.runtime_of)
        yield telemetry
    for runtime in telemetry.runtimes.values():
        runtime.close()


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with the configuration of a two-layer model; it has neither weights nor a tokenizer."""
    directory = tmp_path_factory.mktemp("model")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 192,
        "intermediate_size": 256,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "num_hidden_layers": 2,
        "max_position_embeddings": 512,
        "vocab_size": 1024,
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)
