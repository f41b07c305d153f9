"""Show or set how traffic is split between modes, while requests run."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from connector import names
from stack.grafana.annotate import annotator_from_environment, split_text

EXIT_FAILED, EXIT_USAGE = 1, 2
DEFAULT_ROUTER = "http://127.0.0.1:8000"
DEFAULT_WORD = "default"  # no split: the router's default mode serves all
TOKEN_VARIABLE = "KVPATH_ROUTER_ADMIN_TOKEN"
TIMEOUT_S = 10.0
MODES = (*names.TRANSFER_MODES, names.MODE_PLAIN)

Split = Mapping[str, float]


class AdminSettings(BaseSettings):
    """What the environment says; the router reads the same variable."""

    model_config = SettingsConfigDict(env_prefix="KVPATH_ROUTER_", frozen=True, extra="ignore")

    admin_token: SecretStr = SecretStr("")


class ModeError(Exception):
    """The split could not be read or set; one line for the user."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``kvpath mode``."""
    parser.add_argument(
        "weights",
        nargs="*",
        metavar="MODE=WEIGHT",
        help=f"such as push=50 pull=50; {DEFAULT_WORD!r} removes the split; nothing shows it",
    )
    parser.add_argument(
        "--router", action="append", metavar="URL", help=f"may be given several times (default {DEFAULT_ROUTER})"
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=f"holds the admin token ({TOKEN_VARIABLE})")


def run(args: argparse.Namespace) -> int:
    """Returns 0, 1 when a router did not do it, 2 for weights or a token that make no sense."""
    try:
        wanted = read_weights(args.weights)
        headers = {"Authorization": f"Bearer {read_token(args.token_file)}"}
        with httpx.Client(headers=headers, timeout=TIMEOUT_S, trust_env=False) as client:
            routers = [Router(client, url) for url in args.router or [DEFAULT_ROUTER]]
            _apply(routers, wanted)
    except ModeError as error:
        print(f"kvpath mode: {error}", file=sys.stderr)
        return error.exit_code
    return 0


class Router:
    """The admin endpoint of one router."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self.url = url.rstrip("/")
        self._client = client

    def split(self) -> Split:
        """Raises :class:`ModeError`."""
        return self._ask("GET")[0]

    def replace(self, split: Split) -> tuple[Split, bool]:
        """Returns the split as it is now, and whether the router writes the annotation. Raises :class:`ModeError`."""
        return self._ask("PUT", split)

    def _ask(self, method: str, body: Split | None = None) -> tuple[Split, bool]:
        try:
            answer = self._client.request(method, f"{self.url}/admin/split", json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise ModeError(
                f"cannot reach a router at {self.url} ({reason}); is it running? Name another with --router"
            ) from None
        found = _json(answer)
        if answer.status_code != 200:
            raise self._refusal(answer.status_code, found)
        if not isinstance(found, dict) or not all(isinstance(weight, int | float) for weight in found.values()):
            raise ModeError(f"{self.url}/admin/split did not answer with a split; is this a kvpath router?")
        return found, names.HEADER_ANNOTATED in answer.headers

    def _refusal(self, status: int, body: Any) -> ModeError:
        if status == 401:
            return ModeError(f"the router at {self.url} does not accept this token; it has its own {TOKEN_VARIABLE}")
        if status == 404:
            return ModeError(f"the router at {self.url} has no admin endpoint; start it with {TOKEN_VARIABLE} set")
        error = body.get("error") if isinstance(body, dict) else None
        said = error.get("message") if isinstance(error, dict) else ""
        exit_code = EXIT_USAGE if status == 400 else EXIT_FAILED
        return ModeError(f"the router at {self.url} refused: {said or f'HTTP {status}'}", exit_code)


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None


def _apply(routers: Sequence[Router], wanted: Split | None) -> None:
    """Asks every router before it changes one, so that a wrong token or URL changes nothing."""
    before = [router.split() for router in routers]
    for router, was in zip(routers, before, strict=True):
        prefix = f"{router.url}: " if len(routers) > 1 else ""
        if wanted is None:
            print(f"{prefix}{split_words(was)}")
            continue
        now, annotated = router.replace(wanted)
        print(f"{prefix}{split_words(was)} → {split_words(now)}")
        if now != was and not annotated:
            _annotate(was, now)


def _annotate(before: Split, after: Split) -> None:
    """Marks the change in Grafana when one is named; the change stands whatever becomes of the mark."""
    annotator = annotator_from_environment()
    problem = annotator.annotate(split_text(before, after), names.ANNOTATION_SPLIT) if annotator else None
    if problem:
        print(f"kvpath mode: note: {problem}", file=sys.stderr)


def split_words(split: Split) -> str:
    """The split as ``kvpath mode`` reads it."""
    return " ".join(f"{mode}={weight:g}" for mode, weight in split.items()) or DEFAULT_WORD


def read_weights(words: Sequence[str]) -> Split | None:
    """Reads ``push=50 pull=50``; ``None`` for nothing. Raises :class:`ModeError`."""
    if not words:
        return None
    if list(words) == [DEFAULT_WORD]:
        return {}
    split: dict[str, float] = {}
    for word in words:
        mode, _, text = word.partition("=")
        weight = _weight(text)
        if mode not in MODES or weight is None:
            known = ", ".join(MODES)
            raise ModeError(f"{word!r} is not MODE=WEIGHT with a mode of {known} and a weight from 0 on", EXIT_USAGE)
        if mode in split:
            raise ModeError(f"{mode} is given twice", EXIT_USAGE)
        split[mode] = weight
    if not any(split.values()):
        raise ModeError(f"not all weights may be 0; {DEFAULT_WORD!r} removes the split", EXIT_USAGE)
    return split


def _weight(text: str) -> float | None:
    try:
        weight = float(text)
    except ValueError:
        return None
    return weight if weight >= 0 and math.isfinite(weight) else None


def read_token(file: Path | None) -> str:
    """Returns the admin token of the file or of the environment. Raises :class:`ModeError`."""
    if file is None:
        token, where = AdminSettings().admin_token.get_secret_value(), TOKEN_VARIABLE
    else:
        where = str(file)
        try:
            token = file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ModeError(f"cannot read the token from {file}: {reason}", EXIT_USAGE) from None
    if not token:
        raise ModeError(f"no admin token: set {TOKEN_VARIABLE}, or name a file with --token-file", EXIT_USAGE)
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise ModeError(f"{where} holds something that cannot be a token", EXIT_USAGE)
    return token
