"""``python -m stack.router``: the router alone, as ``kvpath router``."""

import argparse
import sys

from stack.router import command

parser = argparse.ArgumentParser(prog="kvpath router", description=command.__doc__)
command.add_arguments(parser)
sys.exit(command.run(parser.parse_args()))
