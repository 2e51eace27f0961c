"""Runs the benchmarks of Kubernetes one after the other, each in a process of its own.

    python -m benchmarks.kubernetes                  all that need a control plane only
    python -m benchmarks.kubernetes burst cores      only these: they need a node, and a Body's image (`pods`)
    python -m benchmarks.kubernetes knative          only this: it needs the whole cluster of `make cluster`
    python -m benchmarks.kubernetes --quick          briefly, to see that they work; results are not kept

One that fails does not keep the others from being run; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.__main__ import run
from benchmarks.programs import ended_well

NAMES = ("leader", "scale")
ON_A_NODE = ("burst", "cores", "knative")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kubernetes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", choices=(*NAMES, *ON_A_NODE, []), metavar="NAME", help=", ".join((*NAMES, *ON_A_NODE))
    )
    parser.add_argument("--quick", action="store_true", help="measure briefly; results are not kept")
    asked = parser.parse_args(arguments)
    names = asked.names or NAMES
    failed = [
        name for number, name in enumerate(names, 1) if not run(f"kubernetes.{name}", number, len(names), quick=asked.quick)
    ]
    if failed:
        print(f"\nNot measured: {', '.join(failed)}. Run again: python -m benchmarks.kubernetes {' '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    ended_well(lambda: sys.exit(main()))
