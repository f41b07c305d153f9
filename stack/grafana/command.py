"""check an existing Grafana, put the dashboards into it, or annotate"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from connector import names
from stack.grafana.check import check
from stack.grafana.client import Grafana
from stack.grafana.dashboards import read_dashboards
from stack.grafana.errors import GrafanaError
from stack.grafana.push import push
from stack.grafana.settings import PREFIX, TOKEN, URL, required_settings
from stack.grafana.target import OPTIONS, PROMETHEUS, TEMPO, Target

_UID = re.compile(r"[A-Za-z0-9_-]{1,40}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds ``check``, ``push`` and ``annotate``."""
    parser.epilog = (
        f"Grafana's URL comes from {URL}, a service account's token from {TOKEN}, or from the file that --token-file "
        f"or {PREFIX}TOKEN_FILE names. The role Editor is enough."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="check|push|annotate")
    looks = actions.add_parser("check", help="health, data sources, folder, dashboards: one line each")
    pushes = actions.add_parser("push", help="put the dashboards into a folder; a second push changes nothing")
    marks = actions.add_parser("annotate", help="mark this moment in the dashboards")
    for action in (looks, pushes, marks):
        action.add_argument("--token-file", type=Path, metavar="FILE", help="the file that holds the token")
    for action in (looks, pushes):
        _add_target(action)
    pushes.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
    marks.add_argument("text")
    marks.add_argument("--tag", action="append", default=[], metavar="TAG", help="beside kvpath; may be repeated")


def _add_target(action: argparse.ArgumentParser) -> None:
    for own, what in ((PROMETHEUS, "Prometheus"), (TEMPO, "Tempo")):
        action.add_argument(OPTIONS[own], dest=what, type=_uid, metavar="UID", help=f"your {what} data source ({own})")
    action.add_argument("--folder", type=_uid, metavar="UID", help=f"a folder of yours ({names.GRAFANA_FOLDER_UID})")
    action.add_argument("--dashboards", type=Path, metavar="DIR", help="other dashboards than the ones brought along")


def run(args: argparse.Namespace) -> int:
    """Returns 0, 1 when something is not as it should be, 2 for settings that make no sense."""
    try:
        with Grafana(required_settings(args.token_file)) as grafana:
            return _run(grafana, args)
    except GrafanaError as error:
        print(f"kvpath grafana: {error}", file=sys.stderr)
        return error.exit_code


def _run(grafana: Grafana, args: argparse.Namespace) -> int:
    if args.action == "annotate":
        return _annotate(grafana, args)
    target = Target(
        {PROMETHEUS: args.Prometheus or PROMETHEUS, TEMPO: args.Tempo or TEMPO},
        args.folder or names.GRAFANA_FOLDER_UID,
        args.folder is not None,
    )
    dashboards = read_dashboards(args.dashboards)
    if args.action == "check":
        return check(grafana, dashboards, target, _say)
    return push(grafana, dashboards, target, args.dry_run, _say)


def _annotate(grafana: Grafana, args: argparse.Namespace) -> int:
    tags = list(dict.fromkeys(("kvpath", *args.tag)))
    grafana.annotate(args.text, tags, round(time.time() * 1000), None)
    print(f"annotated: {args.text} [{', '.join(tags)}]")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


def _uid(text: str) -> str:
    if not _UID.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a uid: 1 to 40 letters, digits, - or _")
    return text
