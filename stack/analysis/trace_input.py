"""Where the commands get traces: a trace store (``--url``) or a file (``--traces``), OTLP JSON or a store's own."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from connector import names
from stack.analysis.otlp_json import OtlpJsonError, read_file
from stack.analysis.source import DEFAULT_LIMIT, DEFAULT_SINCE_S, DEFAULT_URL, SourceError, TraceSource
from stack.analysis.store_file import is_store_file, load, read_store
from stack.analysis.trace import Trace
from stack.store.errors import StorageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TRACE_ID = re.compile(r"[0-9a-f]{32}")


class InputError(Exception):
    """No traces to work on; one line for the user. ``exit_code`` is 2 when the command line is wrong, else 1."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds ``--url`` and ``--traces``, of which one may be given."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--url", default=None, help=f"trace store with Tempo's HTTP API (default: {DEFAULT_URL})")
    source.add_argument(
        "--traces",
        type=Path,
        metavar="FILE",
        help="read a file instead: OTLP JSON, or the SQLite file of a kvpath store",
    )


def duration_s(text: str) -> float:
    """Parses ``90s``, ``15m``, ``2h`` or ``1d`` into seconds; for argparse."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 15m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]


def positive(text: str) -> int:
    """Parses a whole number of at least 1; for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def load_traces(url: str | None, file: Path | None, since_s: float | None, limit: int | None) -> list[Trace]:
    """Returns the newest traces, newest first; raises :class:`InputError`."""
    if file is not None:
        if since_s is not None:
            raise InputError("--since asks a trace store for recent traces; it does not apply to --traces", 2)
        traces = _from_file(file, limit)
        traces.sort(key=lambda t: min(s.start_ns for s in t.spans), reverse=True)
        return traces[:limit]
    try:
        with TraceSource(url or DEFAULT_URL) as source:
            return list(source.traces(since_s=since_s or DEFAULT_SINCE_S, limit=limit or DEFAULT_LIMIT))
    except SourceError as error:
        raise InputError(str(error)) from None


def load_trace(wanted: str, url: str | None, file: Path | None) -> Trace:
    """Returns one trace by its trace id (from a file also the start of one) or by its request id."""
    if file is not None:
        return _one_of_store(wanted, file) or _pick(wanted, _from_file(file), str(file))
    try:
        with TraceSource(url or DEFAULT_URL) as source:
            trace = source.fetch(wanted.lower()) if _TRACE_ID.fullmatch(wanted.lower()) else None
            return trace or _by_request_id(wanted, source)
    except SourceError as error:
        raise InputError(str(error)) from None


def _from_file(file: Path, limit: int | None = None) -> list[Trace]:
    try:
        return read_store(file, limit) if is_store_file(file) else read_file(file)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from None
    except (OtlpJsonError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: {error}") from None
    except StorageError as error:
        raise InputError(str(error)) from None


def _one_of_store(wanted: str, file: Path) -> Trace | None:
    """The trace of a whole trace id, without reading all the others; ``None`` for anything else."""
    try:
        if _TRACE_ID.fullmatch(wanted.lower()) and is_store_file(file):
            return load(file, bytes.fromhex(wanted))
    except (OSError, StorageError):
        pass  # said by what reads all
    return None


def _pick(wanted: str, traces: list[Trace], where: str) -> Trace:
    by_request = [t for t in traces if _has_request_id(t, wanted)]
    found = [t for t in traces if t.trace_id == wanted.lower()] or by_request
    found = found or [t for t in traces if t.trace_id.startswith(wanted.lower())]
    if len(found) > 1:
        raise InputError(f"{wanted!r} fits {len(found)} traces in {where}; give more of the trace id")
    if not found:
        raise InputError(f"no trace and no request {wanted!r} in {where} ({len(traces)} traces)")
    return found[0]


def _has_request_id(trace: Trace, wanted: str) -> bool:
    return any(span.attributes.get(names.ATTR_REQUEST_ID) == wanted for span in trace.spans)


def _by_request_id(wanted: str, source: TraceSource) -> Trace:
    quoted = wanted.replace("\\", "\\\\").replace('"', '\\"')
    query = f'{{ span.{names.ATTR_REQUEST_ID} = "{quoted}" }}'
    ids = source.search(since_s=7 * 86400, limit=1, query=query)
    trace = source.fetch(ids[0]) if ids else None
    if trace is None:
        raise InputError(f"no trace and no request {wanted!r} in {source.url}")
    return trace
