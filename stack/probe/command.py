"""Measures what NIXL's READ and WRITE cost between two processes or two hosts."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from stack.analysis.terminal import terminal_of
from stack.analysis.trace_input import positive
from stack.engines.processes import interrupt_on_termination
from stack.probe.errors import ProbeError
from stack.probe.plan import DEFAULT_BACKEND, DEFAULT_THREADS, DEFAULT_TIMEOUT_S, LAYOUTS
from stack.probe.report import report_text
from stack.probe.run import DEFAULT_WAIT_S, Address, run_probe, serve_probe
from stack.probe.shape import DTYPE_BYTES, BlockShape
from stack.settings_error import one_line

EXIT_FAILED, EXIT_USAGE = 1, 2
_SHAPE = ("layers", "kv_heads", "head_size")
# What the side that leads decides, for both; with --listen it would be without effect.
_LEADING = (
    *("model", *_SHAPE, "dtype", "block_size", "tokens", "tensor_parallel_size"),
    *("repetitions", "concurrency", "layout", "backend", "num_threads", "progress_delay_us", "seed"),
)
_DEFAULT_TOKENS, _DEFAULT_REPETITIONS, _DEFAULT_BLOCK_SIZE = 256, 5, 16


class UsageError(Exception):
    """The command line cannot be carried out; one line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``kvpath probe``."""
    parser.epilog = (
        "Two hosts: `kvpath probe --listen HOST:PORT` where the decode engine runs, then `kvpath probe --connect "
        "HOST:PORT ...` where the prefill engine runs; the result appears there. Without either, two processes of "
        "this host are measured."
    )
    where = parser.add_argument_group("where").add_mutually_exclusive_group()
    where.add_argument("--listen", type=address, metavar="[HOST:]PORT", help="wait for one peer (HOST: 127.0.0.1)")
    where.add_argument("--connect", type=address, metavar="HOST:PORT", help="measure with the peer that listens there")
    _add_blocks(parser.add_argument_group("the blocks of one engine rank"))
    _add_measurement(parser.add_argument_group("the measurement"))
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _add_blocks(group: Any) -> None:
    group.add_argument("--model", type=Path, metavar="DIR", help="take the shape from a model's config.json")
    group.add_argument("--layers", type=positive, metavar="N", help="layers with a KV cache")
    group.add_argument("--kv-heads", type=positive, metavar="N", help="KV heads of one rank")
    group.add_argument("--head-size", type=positive, metavar="N")
    group.add_argument("--dtype", choices=sorted(DTYPE_BYTES), help="of the KV cache (the model's, else bfloat16)")
    group.add_argument("--block-size", type=positive, metavar="N", help=f"tokens ({_DEFAULT_BLOCK_SIZE})")
    group.add_argument("--tensor-parallel-size", type=positive, metavar="N", help="divides the model's KV heads (1)")
    group.add_argument("--tokens", type=positive, metavar="N", help=f"of one request ({_DEFAULT_TOKENS})")
    group.add_argument("--device", type=device, default="cpu", help="cpu (default) or cuda:N, on this host")


def _add_measurement(group: Any) -> None:
    group.add_argument(
        "--repetitions", type=positive, metavar="N", help=f"after the first, which is apart ({_DEFAULT_REPETITIONS})"
    )
    group.add_argument("--concurrency", type=positive, metavar="N", help="measure N transfers at once as well")
    group.add_argument("--layout", choices=LAYOUTS, help="only this one of the two")
    group.add_argument("--backend", metavar="NAME", help=f"NIXL's backend ({DEFAULT_BACKEND})")
    group.add_argument("--num-threads", type=int, metavar="N", help=f"of the backend UCX (vLLM's {DEFAULT_THREADS})")
    group.add_argument(
        "--progress-delay-us",
        type=delay,
        metavar="US",
        help="longest sleep of NIXL's progress thread, or `off` (as kvpath's engines: off but with --device cpu)",
    )
    group.add_argument("--seed", type=int, metavar="N", help="of the fragmented order (0)")
    group.add_argument(
        "--timeout", type=seconds, default=DEFAULT_TIMEOUT_S, metavar="S", help=f"for a step ({DEFAULT_TIMEOUT_S:g})"
    )
    group.add_argument(
        "--wait", type=seconds, metavar="S", help=f"how long --listen waits for its peer ({DEFAULT_WAIT_S:g})"
    )


def run(args: argparse.Namespace) -> int:
    """Probes and prints; returns 0, 1 when the probe failed, 2 for a wrong command line."""
    try:
        return _serve(args) if args.listen else _measure(args)
    except KeyboardInterrupt:
        print("kvpath probe: interrupted; nothing is left running", file=sys.stderr)
        return EXIT_FAILED
    except ProbeError as error:
        print(f"kvpath probe: {one_line(error)}", file=sys.stderr)
        return EXIT_FAILED
    except (UsageError, ValueError) as error:
        print(f"kvpath probe: {one_line(error)}", file=sys.stderr)
        return EXIT_USAGE


def _serve(args: argparse.Namespace) -> int:
    given = [name for name in _LEADING if getattr(args, name) is not None]
    if given or args.json:
        option = f"--{given[0].replace('_', '-')}" if given else "--json"
        raise UsageError(f"{option} belongs to the side that connects; --listen takes --device, --timeout and --wait")
    wait_s = args.wait or DEFAULT_WAIT_S

    def listening(host: str, port: int) -> None:
        _say(f"waiting on {host}:{port} for a peer, at most {wait_s:g} s")

    interrupt_on_termination()
    serve_probe(args.listen, device=args.device, wait_s=wait_s, timeout_s=args.timeout, listening=listening)
    _say("done; the result is with the peer")
    return 0


def _measure(args: argparse.Namespace) -> int:
    if args.wait is not None:
        raise UsageError("--wait belongs to --listen")
    options = {name: getattr(args, name) for name in ("concurrency", "backend", "num_threads", "seed")}
    options = {name: value for name, value in options.items() if value is not None}
    if args.progress_delay_us is not None:
        options["progress_delay_us"] = None if args.progress_delay_us == "off" else args.progress_delay_us
    if args.layout is not None:
        options["layouts"] = (args.layout,)
    shape = shape_from(args)
    interrupt_on_termination()
    document = run_probe(
        shape,
        args.tokens or _DEFAULT_TOKENS,
        args.repetitions or _DEFAULT_REPETITIONS,
        connect=args.connect,
        device=args.device,
        timeout_s=args.timeout,
        progress=_counter() if sys.stderr.isatty() else None,
        **options,
    )
    print(json.dumps(document, indent=2) if args.json else report_text(document, terminal_of(sys.stdout)))
    return 0


def shape_from(args: argparse.Namespace) -> BlockShape:
    """Returns the shape that the options describe; options win over the model's configuration."""
    block_size = args.block_size or _DEFAULT_BLOCK_SIZE
    given = {name: getattr(args, name) for name in _SHAPE if getattr(args, name) is not None}
    if args.model is None:
        missing = [f"--{name.replace('_', '-')}" for name in _SHAPE if name not in given]
        if missing:
            raise UsageError(f"give the blocks' shape: --model DIR, or also {', '.join(missing)}")
        if args.tensor_parallel_size is not None:
            raise UsageError("--tensor-parallel-size goes with --model; --kv-heads are those of one rank already")
        return BlockShape(**given, dtype=args.dtype or "bfloat16", block_size=block_size)
    try:
        of_model = BlockShape.from_model_config(
            args.model, block_size=block_size, dtype=args.dtype, tensor_parallel_size=args.tensor_parallel_size or 1
        )
    except OSError as error:
        raise UsageError(f"cannot read the configuration of {args.model}: {error.strerror or error}") from None
    fields = {name: getattr(of_model, name) for name in (*_SHAPE, "dtype", "block_size", "tensors")}
    return BlockShape(**{**fields, **given})


def address(text: str) -> Address:
    """Parses ``HOST:PORT``, ``[IPV6]:PORT`` or ``PORT`` (loopback); for argparse."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address such as 10.0.0.5:7700")
    return host, int(port)


def device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda:\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a device: cpu or cuda:N")
    return text


def delay(text: str) -> int | str:
    if text != "off" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of microseconds, nor `off`")
    return text if text == "off" else int(text)


def seconds(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text) or not float(text) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return float(text)


def _counter() -> Any:
    def show(done: int, of: int) -> None:
        print(f"\rmeasurement {done} of {of}", end="\n" if done == of else "", file=sys.stderr, flush=True)

    return show


def _say(text: str) -> None:
    print(f"kvpath probe: {text}", file=sys.stderr, flush=True)
