"""The ``kvpath`` command: finds the part that serves a subcommand and hands over; imports no other part."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import sys
from collections.abc import Sequence

# Subcommand → module with add_arguments(parser) and run(args) -> exit status, and one line of help. The help stands
# here too, so that `kvpath --help` needs no import.
COMMANDS = {
    "demo": ("stack.demo.command", "start everything, send requests in both modes, show where their time went"),
    "up": ("stack.engines.up", "start both engines, the router and the trace store, and keep them until Ctrl-C"),
    "engine": ("stack.engines.engine_command", "run one engine alone"),
    "router": ("stack.router.command", "run the router alone"),
    "mode": ("stack.router.mode_command", "show or set how traffic is split between modes, while requests run"),
    "store": ("stack.store.command", "run the trace store alone"),
    "report": ("stack.analysis.report_command", "compare push and pull, stage by stage"),
    "trace": ("stack.analysis.trace_command", "show one request's path"),
    "view": ("stack.view.command", "show requests, waterfalls and the comparison in the browser"),
    "probe": ("stack.probe.command", "measure READ and WRITE between two processes or hosts, and the transport"),
    "ab": ("stack.experiment.ab_command", "compare two modes in interleaved blocks, with intervals and a verdict"),
    "export": ("stack.exporter.command", "turn finished traces into Prometheus metrics with exemplars"),
    "grafana": ("stack.grafana.command", "check a Grafana, put the dashboards into it, annotate"),
    "bench": ("stack.bench", "measure what telemetry, router, store and analysis cost on this machine"),
}
EXIT_FAILED, EXIT_USAGE = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns its exit status: 0 done, 1 failed, 2 wrong usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0 if arguments else EXIT_USAGE
    if arguments[0] == "--version":
        print(f"kvpath {_version()}")
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        print(f"kvpath: there is no command {name!r}; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return EXIT_USAGE
    module_name, summary = COMMANDS[name]
    module = importlib.import_module(module_name)
    parser = argparse.ArgumentParser(prog=f"kvpath {name}", description=summary[0].upper() + summary[1:] + ".")
    module.add_arguments(parser)
    try:
        return int(module.run(parser.parse_args(arguments[1:])))
    except BrokenPipeError:  # `kvpath report | head`
        sys.stderr.close()
        return 0
    except OSError as error:  # a file, a folder, the disk: what the command itself has nothing better to say about
        print(f"kvpath {name}: {_in_one_line(error)}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print(f"kvpath {name}: interrupted", file=sys.stderr)
        return EXIT_FAILED


def _in_one_line(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename is not None else ""
    return where + (error.strerror or " ".join(str(error).split()) or type(error).__name__)


def _version() -> str:
    try:
        return importlib.metadata.version("kvpath")
    except importlib.metadata.PackageNotFoundError:
        return "unknown: it is not installed, as `make venv` does"


def _overview() -> str:
    lines = [f"  {name:<8} {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: kvpath COMMAND [options] | kvpath --version",
            "",
            *lines,
            "",
            "`kvpath COMMAND --help` lists a command's options.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
