"""Runs the fuzzers of the coordinator, of a node and of pairs, one after the other.

    python -m tests.fuzz                 all of them
    python -m tests.fuzz node remote     only these
    python -m tests.fuzz --quick         briefly, to see that they work; results are not kept

The same seed gives the same cases. A fuzzer that fails does not keep the others from running; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.programs import ROOT, ended_well

NAMES = ("pair", "node", "remote")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=(*NAMES, []), metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="fuzz briefly; results are not kept")
    arguments = parser.parse_args()
    failed = []
    for name in arguments.names or NAMES:
        print(f"\n{name}", flush=True)
        command = [sys.executable, "-m", f"tests.fuzz.{name}", *(["--quick"] if arguments.quick else [])]
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            failed.append(name)
    if failed:
        print(f"\nFailed: {', '.join(failed)}. Run again: python -m tests.fuzz {' '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    ended_well(lambda: sys.exit(main()))
