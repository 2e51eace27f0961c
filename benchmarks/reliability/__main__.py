"""Runs the reliability benchmarks one after the other, each in a process of its own.

    python -m benchmarks.reliability                  every module of this package
    python -m benchmarks.reliability connections      only these
    python -m benchmarks.reliability --quick          briefly, to see that they work; results are not kept

A module is a benchmark unless its name begins with an underscore. One that fails does not keep the others from being run; the
exit code is 1 then.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.__main__ import run_suite
from benchmarks.programs import ended_well

NAMES = tuple(sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py")))


if __name__ == "__main__":
    modules = {name: f"reliability.{name}" for name in NAMES}
    ended_well(lambda: sys.exit(run_suite("benchmarks.reliability", __doc__ or "", modules)))
