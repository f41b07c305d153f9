"""The store's own metrics, one registry a store."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from connector import names


class StoreMetrics:
    """Counters for what came in and what became of it. Safe to use from any thread.

    ``received`` spans were parsed; each is then ``stored``, ``rejected`` (malformed) or ``dropped`` (storage failed;
    the sender was told to retry). Requests refused before parsing are counted by reason in ``refused``.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        self.received = counter(names.METRIC_STORE_RECEIVED, "Spans received in well-formed export requests.")
        self.stored = counter(names.METRIC_STORE_STORED, "Spans committed (a retried span counts again).")
        self.rejected = counter(names.METRIC_STORE_REJECTED, "Spans rejected for a bad id or time.")
        self.dropped = counter(names.METRIC_STORE_DROPPED, "Spans not stored because the database refused.")
        self.refused = counter(names.METRIC_STORE_REFUSED, "Export requests refused.", ("reason",))
        evicted = counter(names.METRIC_STORE_EVICTED, "Traces evicted.", ("reason",))
        self.evicted_age = evicted.labels("age")
        self.evicted_size = evicted.labels("size")
        self.database_bytes = Gauge(
            names.METRIC_STORE_BYTES, "Bytes of the database with its write-ahead log.", registry=self.registry
        )
        self.queue_bytes = Gauge(
            names.METRIC_STORE_QUEUE, "Decoded bytes waiting for the writer.", registry=self.registry
        )
