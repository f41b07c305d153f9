"""run one engine by itself, with the command line that the others of its deployment are given

Everything but its role comes from ``KVPATH_ENGINE_*`` variables. The process becomes vLLM, so that whoever started it
has to do with vLLM alone.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping

from pydantic import ValidationError
from pydantic_settings import SettingsError

from stack.engines.command_line import EngineSpec, engine_argv, engine_env
from stack.engines.cuda import require_gpu
from stack.engines.engine_settings import PREFIX, EngineSettings, engine_spec, variables_text
from stack.engines.model import ModelError, default_cache, prepare_random, prepare_smollm2
from stack.engines.processes import DeploymentError
from stack.engines.up import EXIT_FAILED, EXIT_USAGE
from stack.settings_error import one_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"Everything else comes from variables (and their defaults):\n{variables_text()}"
    parser.add_argument("role", choices=("prefill", "decode"))
    parser.add_argument("--dry-run", action="store_true", help="print the command line and end")


def run(args: argparse.Namespace) -> int:
    """Becomes the engine. Returns only when it cannot: 1 without a model, host or GPU, 2 for a wrong setting."""
    try:
        settings = EngineSettings()
        if settings.device == "cuda" and not args.dry_run:
            require_gpu()
        spec = engine_spec(settings, args.role, settings.model if args.dry_run else _model(settings))
    except (ValidationError, SettingsError) as error:
        print(f"kvpath engine: {PREFIX}*: {one_line(error)}", file=sys.stderr)
        return EXIT_USAGE
    except (ModelError, DeploymentError, OSError) as error:
        print(f"kvpath engine: {error}", file=sys.stderr)
        return EXIT_FAILED
    argv = engine_argv(spec)
    print(f"kvpath engine: {shlex.join(argv)}", flush=True)
    if not args.dry_run:
        os.execve(argv[0], argv, environment(spec, os.environ))
    return 0


def environment(spec: EngineSpec, given: Mapping[str, str]) -> dict[str, str]:
    """Returns the engine's environment: what the project sets, unless ``given`` says otherwise."""
    return engine_env(spec) | dict(given)


def _model(settings: EngineSettings) -> str:
    if not settings.prepared_model:
        return settings.model
    prepare = prepare_random if settings.model == "random" else prepare_smollm2
    return str(prepare(default_cache(), lambda line: print(f"kvpath engine: {line}", flush=True)))
