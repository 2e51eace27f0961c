"""How long a benchmark measures: thoroughly by default, or quickly to see that it works.

    python -m benchmarks.noop --quick

Quick results are written to `.cache/benchmarks` and are never the published ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import RESULTS

ROOT = Path(__file__).resolve().parent.parent
QUICK_RESULTS = ROOT / ".cache" / "benchmarks"


@dataclass(frozen=True, slots=True)
class Pace:
    """`repeats` of `load_s` of closed-loop load each; `step_s` of open-loop load for each rate that is tried."""

    quick: bool
    repeats: int
    load_s: int
    step_s: float
    overload_s: float
    cycles: int
    starts: int
    results: Path


THOROUGH = Pace(quick=False, repeats=7, load_s=3, step_s=5.0, overload_s=60.0, cycles=20, starts=10, results=RESULTS)
QUICK = Pace(quick=True, repeats=3, load_s=2, step_s=2.0, overload_s=12.0, cycles=3, starts=3, results=QUICK_RESULTS)


def asked(description: str, arguments: Sequence[str] | None = None) -> Pace:
    """What the command line asks for."""
    return pace_of(pace_parser(description).parse_args(arguments))


def pace_parser(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure briefly, to see that it works; results are not kept")
    return parser


def pace_of(arguments: argparse.Namespace) -> Pace:
    return QUICK if arguments.quick else THOROUGH


def step(text: str) -> None:
    """Say what happens now."""
    print(f"· {text}", flush=True)
