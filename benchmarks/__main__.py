"""Runs the benchmarks one after the other, each in a process of its own.

    python -m benchmarks                       all of them
    python -m benchmarks noop overload         only these
    python -m benchmarks --from scaling        this one and those after it
    python -m benchmarks --quick               briefly, to see that they work; results are not kept

Use a Python that was built with optimizations, as distributions' are: `make clean bench PYTHON=/usr/bin/python3`. Gnomon and its
peers run on the same one, but more of Gnomon is Python. Each result says which it was.
One that fails does not keep the others from being run; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping

from benchmarks.programs import ROOT, ended_well
from benchmarks.report import interpreter

NAMES = (
    "simulator",
    "decide",
    "arrivals",
    "buffer",
    "twitter_day",
    "batch_baselines",
    "selection",
    "variant_scaling",
    "infaas",
    "degrading",
    "relieving",
    "engine",
    "cold_start",
    "instance_memory",
    "scaling",
    "noop",
    "served_models",
    "doubling",
    "weight_bound",
    "overload",
    "regression",
)


def main() -> int:
    return run_suite("benchmarks", __doc__ or "", {name: name for name in NAMES})


def run_suite(prog: str, about: str, modules: Mapping[str, str], optional: Mapping[str, str] | None = None) -> int:
    """Run what the command line asks for: by name, modules below `benchmarks`. `optional` ones run only when they are named."""
    every = {**modules, **(optional or {})}
    parser = argparse.ArgumentParser(
        prog=f"python -m {prog}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=(*every, []), metavar="NAME", help=", ".join(every))
    parser.add_argument("--from", dest="first", choices=tuple(modules), help="begin with this one")
    parser.add_argument("--quick", action="store_true", help="measure briefly; results are not kept")
    options = parser.parse_args()
    print(f"Python {interpreter()}", flush=True)
    names = options.names or list(modules)[list(modules).index(options.first) if options.first else 0 :]
    failed = [name for number, name in enumerate(names, 1) if not run(every[name], number, len(names), quick=options.quick)]
    if failed:
        print(f"\nNot measured: {', '.join(failed)}. Run again: python -m {prog} {' '.join(failed)}", flush=True)
    return 1 if failed else 0


def run(name: str, number: int, count: int, *, quick: bool) -> bool:
    """Run one, and say whether it ended well."""
    print(f"\n[{number}/{count}] {name}", flush=True)
    begun_s = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", f"benchmarks.{name}", *(["--quick"] if quick else [])], cwd=ROOT)
    try:
        status = process.wait()
    finally:
        process.terminate()  # where we are interrupted; it ends what it started
        process.wait()
    print(f"{name}: {'done' if status == 0 else f'failed with {status}'} after {time.monotonic() - begun_s:.0f} s", flush=True)
    return status == 0


if __name__ == "__main__":
    ended_well(lambda: sys.exit(main()))
