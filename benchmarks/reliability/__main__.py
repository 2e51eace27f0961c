"""Runs the reliability benchmarks one after the other, each in a process of its own.

    python -m benchmarks.reliability                  every module of this package
    python -m benchmarks.reliability connections      only these
    python -m benchmarks.reliability --quick          briefly, to see that they work; results are not kept

A module is a benchmark unless its name begins with an underscore. One that fails does not keep the others from being run; the
exit code is 1 then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.__main__ import run
from benchmarks.programs import ended_well

NAMES = tuple(sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py")))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reliability", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=(*NAMES, []), metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="measure briefly; results are not kept")
    asked = parser.parse_args(arguments)
    names = asked.names or NAMES
    failed = [
        name for number, name in enumerate(names, 1) if not run(f"reliability.{name}", number, len(names), quick=asked.quick)
    ]
    if failed:
        print(f"\nNot measured: {', '.join(failed)}. Run again: python -m benchmarks.reliability {' '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    ended_well(lambda: sys.exit(main()))
