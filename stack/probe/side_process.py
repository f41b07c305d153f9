"""The process of one side: ``python -m stack.probe.side_process JSON``, started by :mod:`stack.probe.run`.

A side has a process of its own because UCX prints its protocol tables there, into the log that the side reads, and
because an agent that crashes or hangs must not take the command with it. What happens is told through a FIFO, one
JSON object a line.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from stack.probe.control import MARGIN_S, Channel, accept, connect, listen
from stack.probe.errors import PeerError, ProbeError
from stack.probe.plan import Plan


def main(settings: dict[str, Any]) -> int:
    with Path(settings["events"]).open("w", encoding="utf-8") as events:

        def report(event: str, **content: Any) -> None:
            print(json.dumps({"event": event, **content}), file=events, flush=True)

        try:
            _run(settings, report)
        except ProbeError as error:
            report("error", message=str(error), cause=type(error).__name__)
            return 1
    return 0


def _run(settings: dict[str, Any], report: Any) -> None:
    device, log, timeout_s = settings["device"], Path(settings["log"]), settings["timeout_s"] + MARGIN_S
    host, port = settings["address"]
    if settings["listen"]:
        server = listen(host, port)
        report("listening", host=host, port=server.getsockname()[1])
        channel = accept(server, settings["wait_s"], timeout_s)
        report("connected")
        with _ending(channel):
            _side().follow(channel, device, log, report)
        report("done")
    else:
        channel = connect(host, port, timeout_s)
        report("connected")
        with _ending(channel):
            measured = _side().lead(channel, Plan.from_json(settings["plan"]), device, log, report)
        report("result", measured=measured)


def _side() -> Any:
    """Loads what needs NIXL and numpy: after the connection is made, so that the peer is told when they are missing."""
    try:
        return importlib.import_module("stack.probe.side")
    except ImportError as error:
        raise ProbeError(f"NIXL is not installed here ({error}); try `pip install nixl`") from None


@contextlib.contextmanager
def _ending(channel: Channel) -> Any:
    """Tells the peer why this side gives up, and closes the channel."""
    try:
        yield
    except PeerError:
        raise
    except Exception as error:
        with contextlib.suppress(ProbeError):
            channel.send("error", message=str(error) if isinstance(error, ProbeError) else repr(error))
        raise
    finally:
        channel.close()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
