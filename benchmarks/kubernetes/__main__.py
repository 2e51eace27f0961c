"""Runs the benchmarks of Kubernetes one after the other, each in a process of its own.

    python -m benchmarks.kubernetes                  all that need a control plane only
    python -m benchmarks.kubernetes burst cores      only these: they need a node, and a Body's image (`pods`)
    python -m benchmarks.kubernetes knative          only this: it needs the whole cluster of `make cluster`
    python -m benchmarks.kubernetes --quick          briefly, to see that they work; results are not kept

One that fails does not keep the others from being run; the exit code is 1 then.
"""

from __future__ import annotations

import sys

from benchmarks.__main__ import run_suite
from benchmarks.programs import ended_well

NAMES = ("leader", "scale")
ON_A_NODE = ("burst", "cores", "knative")


if __name__ == "__main__":
    suites = ({name: f"kubernetes.{name}" for name in names} for names in (NAMES, ON_A_NODE))
    ended_well(lambda: sys.exit(run_suite("benchmarks.kubernetes", __doc__ or "", *suites)))
