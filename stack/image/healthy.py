"""A container's health check: ``python -m stack.image.healthy URL [--serves-a-model]``. Standard library only.

An engine is healthy when its ``/health`` answers, for which vLLM asks its engine process, and it serves a model.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 5.0
_without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when the part does its work, else 1 with one line that says what is wrong."""
    parser = argparse.ArgumentParser(prog="healthy", description="Whether a part does its work.")
    parser.add_argument("url", help="what has to answer 200")
    parser.add_argument("--serves-a-model", action="store_true", help="and /v1/models beside it lists one")
    args = parser.parse_args(argv)
    try:
        _get(args.url)
        if args.serves_a_model and not json.loads(_get(f"{args.url.rpartition('/')[0]}/v1/models"))["data"]:
            print("it serves no model")
            return 1
    except urllib.error.HTTPError as error:
        print(f"{error.url} answers {error.code}: {error.read(500).decode(errors='replace')}")
        return 1
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{args.url}: {error}")
        return 1
    return 0


def _get(url: str) -> bytes:
    with _without_proxy.open(url, timeout=TIMEOUT_S) as answer:
        body: bytes = answer.read()
    return body


if __name__ == "__main__":
    sys.exit(main())
