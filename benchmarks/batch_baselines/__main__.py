"""BATCH beside vanilla Lambda, SageMaker's autoscaling and MArk: requests over the SLO and cost, on days of recorded demand.

    python -m benchmarks.batch_baselines [--quick] [--hours N] [--afresh] [--only TEXT]

`cases` says which demand meets which objective and what is for sale, `baselines` who serves it. Everything happens in virtual
time, so that the same code gives the same figures on every computer.

Three hours of each day take about ten minutes on one core; --hours 23 takes the whole days, seven times as long. What is done
is kept in .cache/benchmarks until the code that decides it changes: interrupted, the same command goes on from there. --only
takes the cases whose key holds a text, and writes no result. What each minute was like is in `batch_baselines_minutes.csv` beside
the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.batch_baselines.baselines import HOURS, NAMES, Case, Minute, Row, cases, demand_of, served, supply, to_csv
from benchmarks.programs import ended_well, pace_of, pace_parser, step
from benchmarks.report import Figure, Kept, write

MINUTES = "batch_baselines_minutes.csv"
SOURCES = (
    "autoscaler/gnomon_autoscaler/policies",
    "autoscaler/gnomon_autoscaler/runner.py",
    "gateway-plugin/gnomon_gateway/dispatch",
    "gateway-plugin/gnomon_gateway/scheduling",
    "planner",
    "planner/gnomon_planner/validation.py",
    "simulator/gnomon_simulator/results.py",
    "simulator/gnomon_simulator/simulation.py",
    "simulator/gnomon_simulator/simulated_platform.py",
    "benchmarks/batch_baselines/baselines.py",
)


def rows_of(case: Case, kept: Kept) -> list[Row]:
    """Everybody's row, from what was kept as far as it is there."""
    found = []
    for name in NAMES:
        key = f"{case.key}: {name}"
        document = kept.get(key)
        if document is None:
            document = served(name, demand_of(case), supply(), case.objective).row(case.objective).to_json()
            kept.keep(key, document)
        row = Row.from_json(document)
        step(f"{key}: {told(row, case)}")
        found.append(row)
    return found


def told(row: Row, case: Case) -> str:
    """A row for a reader."""
    return (
        f"{row.late:.3%} late, P{case.objective.percent:g} {row.percentile_s * 1e3:.1f} ms, "
        f"${row.usd_per_million:.3f} a million, {_shape(row)}; {row.said}"
    )


def figures_of(case: Case, rows: Sequence[Row]) -> Iterator[Figure]:
    """Of each: requests over the SLO, the percentile and the cost; beside it BATCH's."""
    batch = rows[0]
    for row in rows:
        key, beside = (
            f"{case.key}: {row.name}",
            "" if row is batch else f"; {row.usd_per_million / batch.usd_per_million:.3g} × batch's",
        )
        percentile_ms = row.percentile_s * 1e3 if row.percentile_s < math.inf else -1.0
        yield Figure(f"{key}: late", 100.0 * row.late, "% of requests", detail=f"of {row.requests}; {row.said}")
        yield Figure(
            f"{key}: P{case.objective.percent:g}", percentile_ms, "ms", detail="-1 is no answer" if percentile_ms < 0.0 else ""
        )
        yield Figure(f"{key}: cost", row.usd_per_million, "$ per million requests", detail=f"{_shape(row)}{beside}")


def _shape(row: Row) -> str:
    return f"mean batch {row.batch:.2f}, {row.machines:.2f} machines, {row.on_demand:.1%} called"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--hours", type=float, default=HOURS, metavar="N", help="of each demand, as far as it has them")
    parser.add_argument("--afresh", action="store_true", help="do again what an interrupted run has kept")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases whose key holds it")
    asked = parser.parse_args(arguments)
    pace = pace_of(asked)
    kept = Kept("batch_baselines", SOURCES)
    if asked.afresh:
        kept.forget()
    figures: list[Figure] = []
    documents: list[dict[str, Any]] = []
    over_time: list[tuple[str, str, Sequence[Minute]]] = []
    for case in cases(quick=pace.quick, hours=asked.hours):
        if asked.only in case.key:
            rows = rows_of(case, kept)
            figures += figures_of(case, rows)
            documents.append({"case": case.key, "rows": [replace(row, minutes=()).to_json() for row in rows]})
            over_time += [(case.key, row.name, row.minutes) for row in rows]
    if not asked.only:
        pace.results.mkdir(parents=True, exist_ok=True)
        (pace.results / MINUTES).write_text(to_csv(over_time), encoding="utf-8")
        write("batch_baselines", figures, repeats=1, packages=("gnomon", "numpy"), folder=pace.results, more={"cases": documents})


if __name__ == "__main__":
    ended_well(main)
