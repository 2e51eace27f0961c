"""The evaluation: AsyFunc's policies, its rivals and ours on simulated clusters, as a page with figures and verdicts.

    python -m benchmarks.reports.evaluation [--quick] [--seconds N] [--minutes N] [--traces FILE …] [--output FOLDER] [--kept]

Each cell's result is kept in .cache/benchmarks until the code that decides it changes, so that an interrupted evaluation goes on
where it was. `--minutes` begins no cell after so long; the page says which part of the grid was run. `--kept` simulates nothing.
`--traces` adds files of demand of any kind that `gnomon_simulator.arrivals` reads, on both clusters, and simulates them first.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path

from benchmarks.programs import ROOT, ended_well, step
from benchmarks.report import ResultCache
from benchmarks.reports.evaluation.grid import Cell, grid
from benchmarks.reports.evaluation.loads import FILE, arrivals
from benchmarks.reports.evaluation.pages import published
from benchmarks.reports.evaluation.runs import Row, measure
from gnomon_simulator.commands import Progress

SOURCES = (
    "core", "autoscaler", "simulator", "gateway-plugin", "benchmarks/asyfunc_cluster.py",
    "benchmarks/reports/evaluation/loads.py", "benchmarks/reports/evaluation/runs.py",
)  # fmt: skip
FOLDER, QUICK_FOLDER = ROOT / "docs", ROOT / ".cache" / "reports" / "evaluation-quick"
DURATION_S, QUICK_S = 1800.0, 90.0


def main(arguments: Sequence[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reports.evaluation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few cells of 90 s, to see that it works; no result to cite")
    parser.add_argument("--seconds", type=float, help=f"virtual time of a cell; {DURATION_S:g} unless it is said")
    parser.add_argument("--minutes", type=float, help="begin no cell after so long")
    parser.add_argument("--traces", nargs="*", default=(), metavar="FILE", help="files of demand")
    parser.add_argument("--output", type=Path, help="where evaluation.md goes; docs unless it is said")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many cells at once")
    parser.add_argument("--kept", action="store_true", help="only what runs have kept: nothing is simulated")
    options = parser.parse_args(arguments)
    duration_s = options.seconds or (QUICK_S if options.quick else DURATION_S)
    files = [f"{FILE}{Path(name).resolve()}" for name in options.traces]
    for name in files:
        # A file that cannot be read is reported before anything is simulated.
        arrivals(name, 1.0, duration_s, 1)
    cells = grid(duration_s, files, quick=options.quick)
    rows = simulated(cells, 0.0 if options.kept else options.minutes, options.processes)
    folder: Path = options.output or (QUICK_FOLDER if options.quick or files else FOLDER)
    page = published(cells, rows, duration_s, folder)
    print(page, flush=True)
    return page


def simulated(cells: Sequence[Cell], minutes: float | None, processes: int) -> dict[str, Row]:
    """The rows by the cells' keys, of those that were kept and of those that are simulated now."""
    kept = ResultCache("evaluation", SOURCES)
    unique = {cell.key: cell for cell in cells}
    rows = {key: Row(**found) for key in unique if (found := kept.get(key)) is not None}
    missing = iter([cell for key, cell in unique.items() if key not in rows])
    step(f"{len(rows)} of {len(unique)} cells were simulated before")
    end_s = float("inf") if minutes is None else time.monotonic() + 60.0 * minutes
    before, progress = len(rows), Progress("evaluate", "cells")
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: dict[Future[Row], Cell] = {}
        while True:
            free_slots = processes - len(running) if time.monotonic() < end_s else 0
            running |= {pool.submit(measure, cell): cell for cell in islice(missing, free_slots)}
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                cell = running.pop(future)
                rows[cell.key] = future.result()
                kept.keep(cell.key, rows[cell.key].to_json())
            progress.at(len(rows) - before, len(unique) - before)
    progress.end()
    return rows


if __name__ == "__main__":
    ended_well(main, "evaluate")
