"""``python -m dashboards`` writes the generated files again; with ``--check`` it only says which differ, and fails."""

from __future__ import annotations

import argparse
import sys

from dashboards import generate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file would change")
    if parser.parse_args().check:
        changed = generate.differing(generate.generated())
        for path in changed:
            print(f"not as the code has it: {path}; run `make dashboards` and commit", file=sys.stderr)
        return 1 if changed else 0
    for path in generate.write():
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
