"""One export request, from its body to the commit, and OTLP's answers to it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from google.rpc.code_pb2 import INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from stack.store.errors import StoreError
from stack.store.metrics import StoreMetrics
from stack.store.otlp import JSON, PROTOBUF, Batch, inflate, parse, split
from stack.store.settings import StoreSettings
from stack.store.writer import Writer

_CODES = {413: RESOURCE_EXHAUSTED, 503: UNAVAILABLE}


class Ingest:
    """Takes export requests on the event loop, decodes them on worker threads, and waits for the writer."""

    def __init__(self, settings: StoreSettings, metrics: StoreMetrics, writer: Writer) -> None:
        self._settings = settings
        self._metrics = metrics
        self._writer = writer

    async def accept(self, body: bytes, media_type: str, encoding: str) -> Batch:
        """Stores one request's spans and returns them split by trace; raises StoreError when nothing was stored."""
        batch, done = await asyncio.to_thread(self._decode, body, media_type, encoding)
        await asyncio.wrap_future(done)
        return batch

    def count_refusal(self, error: StoreError) -> None:
        self._metrics.refused.labels(error.reason).inc()

    def _decode(self, body: bytes, media_type: str, encoding: str) -> tuple[Batch, Future[None]]:
        plain = inflate(body, encoding, self._settings.max_body_bytes)
        self._writer.reserve(len(plain))
        try:
            batch = split(parse(plain, media_type), len(plain))
            self._metrics.received.inc(batch.spans + batch.rejected)
            self._metrics.rejected.inc(batch.rejected)
            done = self._writer.submit(batch)
        except BaseException:
            self._writer.release(len(plain))
            raise
        done.add_done_callback(lambda _: self._writer.release(len(plain)))
        return batch, done


def success_body(batch: Batch, media_type: str) -> tuple[bytes, str]:
    """Returns the body and media type of an accepted export, with ``partial_success`` if spans were rejected."""
    response = ExportTraceServiceResponse()
    if batch.rejected:
        response.partial_success.rejected_spans = batch.rejected
        response.partial_success.error_message = batch.complaint
    return _encode(response, media_type)


def failure_body(error: StoreError, media_type: str) -> tuple[bytes, str]:
    """Returns the body and media type of a refused export: a google.rpc.Status, as OTLP asks."""
    return _encode(Status(code=_CODES.get(error.status, INVALID_ARGUMENT), message=str(error)), media_type)


def _encode(message: Message, media_type: str) -> tuple[bytes, str]:
    if media_type == JSON:
        return MessageToJson(message, indent=None).encode(), JSON
    return message.SerializeToString(), PROTOBUF
