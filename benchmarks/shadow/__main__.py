"""Runs the benchmarks of Body and Shadow one after the other, each in a process of its own.

    python -m benchmarks.shadow                       all of them
    python -m benchmarks.shadow starts pairs          only these
    python -m benchmarks.shadow --quick               briefly, to see that they work; results are not kept

The figures are times of a machine that does nothing else: run them on a quiet one with two CPUs or more. One that fails does not
keep the others from being run; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.__main__ import run
from benchmarks.programs import ended_well

NAMES = (
    "starts",
    "pairs",
    "hand_over",
    "overhead",
    "prediction",
    "curve",
    "several",
    "promotion",
    "remote",
    "memory",
    "kills",
    "asyfunc_cluster",
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shadow", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=(*NAMES, []), metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="measure briefly; results are not kept")
    asked = parser.parse_args(arguments)
    names = asked.names or NAMES
    failed = [name for number, name in enumerate(names, 1) if not run(module_of(name), number, len(names), quick=asked.quick)]
    if failed:
        print(f"\nNot measured: {', '.join(failed)}. Run again: python -m benchmarks.shadow {' '.join(failed)}", flush=True)
    return 1 if failed else 0


def module_of(name: str) -> str:
    """The module of a benchmark, below `benchmarks`."""
    return name if name == "asyfunc_cluster" else f"shadow.{name}"


if __name__ == "__main__":
    ended_well(lambda: sys.exit(main()))
