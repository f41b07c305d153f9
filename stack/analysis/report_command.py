"""Prints push beside pull, stage by stage, from a trace store or a file."""

from __future__ import annotations

import argparse
import json
import sys

from stack.analysis.compare import analyse_all, compare
from stack.analysis.report_json import report_document
from stack.analysis.report_text import report_text
from stack.analysis.source import DEFAULT_LIMIT
from stack.analysis.terminal import terminal_of
from stack.analysis.trace_input import InputError, add_source_arguments, duration_s, load_traces, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``kvpath report``."""
    add_source_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--since", type=duration_s, metavar="DURATION", help="how far back: 90s, 15m, 2h (default: 1h)")
    parser.add_argument(
        "--limit", type=positive, metavar="N", help=f"newest N traces (default: {DEFAULT_LIMIT}, of a file all)"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the report; returns 0, 1 when traces cannot be had, 2 for a wrong command line."""
    try:
        traces = load_traces(args.url, args.traces, args.since, args.limit)
    except InputError as error:
        print(f"kvpath report: {error}", file=sys.stderr)
        return error.exit_code
    analysed = analyse_all(traces)
    comparison = compare(analysed)
    if args.json:
        print(json.dumps(report_document(comparison, analysed), indent=2))
    else:
        print(report_text(comparison, terminal_of(sys.stdout)))
    return 0
