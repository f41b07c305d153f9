"""Prints one request's waterfall, with the critical path marked and its stages summed."""

from __future__ import annotations

import argparse
import json
import sys

from stack.analysis.critical_path import NoCriticalPath, aligned_request, path_of
from stack.analysis.report_json import path_document
from stack.analysis.terminal import terminal_of
from stack.analysis.trace_input import InputError, add_source_arguments, load_trace
from stack.analysis.waterfall import waterfall_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``kvpath trace``."""
    parser.add_argument("id", metavar="ID", help="trace id, or request id (X-Request-Id)")
    add_source_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the critical path as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints the waterfall; returns 0, or 1 when there is no such trace or (with ``--json``) no critical path."""
    try:
        trace = load_trace(args.id, args.url, args.traces)
    except InputError as error:
        print(f"kvpath trace: {error}", file=sys.stderr)
        return error.exit_code
    request, clocks = aligned_request(trace)
    if not args.json:
        print(waterfall_text(request, clocks, terminal_of(sys.stdout)))
        return 0
    try:
        print(json.dumps(path_document(path_of(request, clocks)), indent=2))
    except NoCriticalPath as error:
        print(f"kvpath trace: {trace.trace_id} has no critical path: {error}", file=sys.stderr)
        return 1
    return 0
