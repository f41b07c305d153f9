"""A real trace store, an exporter that follows it, and a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from stack.analysis.otlp_json import dumps
from stack.analysis.source import TraceSource
from stack.analysis.synthetic import EPOCH_NS
from stack.analysis.trace import Trace
from stack.exporter.follower import Follower
from stack.exporter.metrics import ExporterMetrics
from stack.exporter.settings import ExporterSettings
from stack.exporter.state import State
from stack.store.settings import StoreSettings
from stack.store.testing import StoreClient, opened

EPOCH_S = EPOCH_NS / 1e9  # when synthetic requests come in


class Clock:
    """Unix seconds that only a test moves; starts a minute before the synthetic requests."""

    def __init__(self) -> None:
        self.now = EPOCH_S - 60

    def __call__(self) -> float:
        return self.now


class Exporter:
    """A follower of one store with everything that belongs to it; :meth:`restart` leaves only the state file."""

    def __init__(self, url: str, state: Path, clock: Clock, **settings: object) -> None:
        self.settings = ExporterSettings(tempo_url=url, state=state, **settings)
        self.clock = clock
        self._open()

    def _open(self) -> None:
        self.metrics = ExporterMetrics()
        self.state = State(self.settings.state)
        self.source = TraceSource(self.settings.tempo_url)
        self.follower = Follower(self.settings, self.source, self.state, self.metrics, self.clock)

    def restart(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        self.follower.close()
        self.state.close()
        self.source.close()

    def poll_at(self, seconds: float) -> list[str]:
        """Moves the clock to ``seconds`` after the synthetic requests came in, and polls."""
        self.clock.now = EPOCH_S + seconds
        return self.follower.poll()

    def samples(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """What Prometheus would read: (name, label values) → value."""
        text = generate_latest(self.metrics.registry).decode()
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, *labels: str) -> float:
        """One series; 0 when there is none."""
        return self.samples().get((name, labels), 0.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreClient]:
    with opened(StoreSettings(path=tmp_path / "traces.db")) as client:
        yield client


@pytest.fixture
def send(store: StoreClient) -> Callable[..., None]:
    """Sends traces, or parts of them, to the store."""

    def export(*traces: Trace) -> None:
        answer = store.post("/v1/traces", content=dumps(traces), headers={"Content-Type": "application/json"})
        assert answer.status_code == 200, answer.text

    return export


@pytest.fixture
def start(store: StoreClient, tmp_path: Path) -> Iterator[Callable[..., Exporter]]:
    """Starts exporters of the store; several of one test share their clock."""
    clock, running = Clock(), []

    def begin(state: str = "state.db", url: str = "", **settings: object) -> Exporter:
        exporter = Exporter(url or str(store.base_url), tmp_path / state, clock, **settings)
        running.append(exporter)
        return exporter

    yield begin
    for exporter in running:
        exporter.close()
