"""Prints push beside pull, stage by stage, from a trace store or a file; or writes it as one HTML file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from stack.analysis.compare import Analysed, analyse_all, compare
from stack.analysis.report_json import report_document
from stack.analysis.report_text import report_text
from stack.analysis.source import DEFAULT_LIMIT, DEFAULT_URL
from stack.analysis.terminal import terminal_of
from stack.analysis.trace import Trace
from stack.analysis.trace_input import InputError, add_source_arguments, duration_s, load_traces, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``kvpath report``."""
    add_source_arguments(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the report as JSON")
    form.add_argument("--html", type=Path, metavar="FILE", help="write the report as one self-contained page")
    parser.add_argument(
        "--result", type=Path, metavar="PATH", help="with --html: an experiment's folder or result.json"
    )
    parser.add_argument("--since", type=duration_s, metavar="DURATION", help="how far back: 90s, 15m, 2h (default: 1h)")
    parser.add_argument(
        "--limit", type=positive, metavar="N", help=f"newest N traces (default: {DEFAULT_LIMIT}, of a file all)"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the report; returns 0, 1 when traces cannot be had, 2 for a wrong command line."""
    if args.result is not None and args.html is None:
        print("kvpath report: --result is for --html: its verdict is part of the page", file=sys.stderr)
        return 2
    try:
        traces = load_traces(args.url, args.traces, args.since, args.limit)
    except InputError as error:
        print(f"kvpath report: {error}", file=sys.stderr)
        return error.exit_code
    analysed = analyse_all(traces)
    if args.html is not None:
        return _write_html(args, traces, analysed)
    comparison = compare(analysed)
    if args.json:
        print(json.dumps(report_document(comparison, analysed), indent=2))
    else:
        print(report_text(comparison, terminal_of(sys.stdout)))
    return 0


def _write_html(args: argparse.Namespace, traces: list[Trace], analysed: list[Analysed]) -> int:
    from stack.view.report import html_report  # the page is of no concern to the other forms
    from stack.view.verdict import ResultError, named_result, result_beside

    try:
        named = named_result(args.result)
    except ResultError as error:
        print(f"kvpath report: {error}", file=sys.stderr)
        return 2
    result = named or (result_beside(args.traces) if args.traces else None)
    source = f"file {args.traces.name}" if args.traces else f"trace store {args.url or DEFAULT_URL}"
    page = html_report(traces, analysed, result, source)
    try:
        args.html.write_text(page, encoding="utf-8")
    except OSError as error:
        print(f"kvpath report: cannot write {args.html}: {error.strerror or error}", file=sys.stderr)
        return 1
    print(f"wrote {args.html}")
    return 0
