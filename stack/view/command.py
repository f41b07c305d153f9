"""shows requests, waterfalls, the comparison and the verdict as a page in the browser"""

from __future__ import annotations

import argparse
import socket
import sys
import webbrowser
from contextlib import closing
from pathlib import Path

import httpx

from stack.analysis.source import DEFAULT_URL, SourceError
from stack.analysis.trace_input import InputError, add_source_arguments, load_traces, positive
from stack.serving import serve
from stack.view.app import PATH, create_app
from stack.view.feed import DEFAULT_LIMIT, Feed, FileFeed, RemoteFeed
from stack.view.verdict import ResultError, named_result, result_beside


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``kvpath view``."""
    add_source_arguments(parser)
    parser.add_argument("--result", type=Path, metavar="PATH", help="an experiment's folder or result.json")
    parser.add_argument("--limit", type=positive, metavar="N", help=f"newest N requests (default: {DEFAULT_LIMIT})")
    parser.add_argument("--port", type=int, help="serve on this port of 127.0.0.1 (default: a free one)")
    parser.add_argument("--open", action="store_true", help="also open the page in the browser")


def run(args: argparse.Namespace) -> int:
    """Prints the page's address, and serves the page where no store does. Returns 0, 1 without traces, 2 for misuse."""
    try:
        result = named_result(args.result)
        own_port = args.port is not None
        if args.traces is None and result is None and not own_port and _serves_page(args.url or DEFAULT_URL):
            return _show(f"{(args.url or DEFAULT_URL).rstrip('/')}{PATH}", args.open)
        if args.traces is not None:
            feed = FileFeed(args.traces, load_traces(None, args.traces, None, args.limit))
            return _listen(feed, result or result_beside(args.traces), args)
        with closing(RemoteFeed(args.url or DEFAULT_URL, limit=args.limit or DEFAULT_LIMIT)) as remote:
            remote.newest()  # an unreachable store is said now
            return _listen(remote, result, args)
    except ResultError as error:
        print(f"kvpath view: {error}", file=sys.stderr)
        return 2
    except (InputError, SourceError) as error:
        print(f"kvpath view: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, InputError) else 1


def _listen(feed: Feed, result: Path | None, args: argparse.Namespace) -> int:
    try:
        listener = socket.create_server(("127.0.0.1", args.port or 0))
    except (OSError, OverflowError) as error:
        print(f"kvpath view: cannot listen on 127.0.0.1:{args.port}: {error}; pick another --port", file=sys.stderr)
        return 1
    with listener:
        _show(f"http://127.0.0.1:{listener.getsockname()[1]}{PATH} ({feed.name}; Ctrl-C ends it)", args.open)
        serve(create_app(feed, result), listener)
        return 0


def _serves_page(url: str) -> bool:
    """Whether the store at ``url`` serves the page itself, as ``kvpath store`` does and Tempo does not."""
    try:
        answer = httpx.get(f"{url.rstrip('/')}{PATH}api/verdict", timeout=5)
        return answer.status_code == 200 and "headline" in answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return False


def _show(address: str, in_browser: bool) -> int:
    print(f"kvpath view: {address}", flush=True)
    if in_browser:
        webbrowser.open(address.split()[0])
    return 0
