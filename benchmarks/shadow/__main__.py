"""Runs the benchmarks of Body and Shadow one after the other, each in a process of its own.

    python -m benchmarks.shadow                       all of them
    python -m benchmarks.shadow starts curve          only these
    python -m benchmarks.shadow --quick               briefly, to see that they work; results are not kept

The figures are times of a machine that does nothing else: run them on a quiet one with two CPUs or more. One that fails does not
keep the others from being run; the exit code is 1 then.
"""

from __future__ import annotations

import sys

from benchmarks.__main__ import run_suite
from benchmarks.programs import ended_well

NAMES = (
    "starts",
    "hand_over",
    "curve",
    "several",
    "promotion",
    "remote",
    "asyfunc_cluster",
)


def module_of(name: str) -> str:
    """The module of a benchmark, below `benchmarks`."""
    return name if name == "asyfunc_cluster" else f"shadow.{name}"


if __name__ == "__main__":
    modules = {name: module_of(name) for name in NAMES}
    ended_well(lambda: sys.exit(run_suite("benchmarks.shadow", __doc__ or "", modules)))
