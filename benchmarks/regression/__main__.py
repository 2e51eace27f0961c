"""Service times of a layer program under 46 processor quotas × 20 batches, from at most 27 of the 920 cells.

    python -m benchmarks.regression [--quick] [--model NAME] [--period-ms MS] [--workers N] [--for-s SECONDS] [--afresh]

The quotas are those of Lambda's memory sizes from 128 to 3,008 MB, 1,769 MB being a core, set on a control group: so it needs
root, or a part of the tree that was delegated. Each cell is visited in five rounds for two runs; its time is their median. The
goal is a mean error of 2 % on the cells that were not trained on (BATCH, Section VI-B).

It wants a machine with nothing else to do, and takes about an hour and a half; --workers 2 measures two cells of one thread at
once, each on a core of its own, in three quarters of an hour. Two virtual cores slow each other down, by 5 to 7 % on one machine,
and all cells of one thread alike. What is measured is kept in .cache/benchmarks: --for-s 500 ends after so many seconds, and the
same command goes on from there, also another day. Results are written when every visit was made; before that it prints what those
that were made say.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gnomon import MODELS
from benchmarks.programs import QUICK_RESULTS, ended_well, pace_of, pace_parser, step
from benchmarks.regression.cells import BATCHES, MEMORIES_MB, Grid, Kept, Visit, figures, table
from benchmarks.regression.measuring import NoQuotaError, Quota, Worker, measure
from benchmarks.report import processor, write
from gnomon_core.lambda_pricing import MB_PER_CORE
from gnomon_core.packaging import jemalloc
from gnomon_planner.service_time import SHARE
from gnomon_profiler.add import ensure_model
from gnomon_profiler.repository import DirectoryRepository

MODEL = "efficientnet-lite0"
PERIOD_MS = 20.0
ROUNDS, RUNS = 5, 2
"""Of each cell; ten runs in all."""
QUICK_ROUNDS = 1
QUICK_GRID = ((442, 885, 1769, 1856, 2560, 3008), (1, 2, 3, 4), 0.7)


def main(arguments: argparse.Namespace) -> None:
    pace = pace_of(arguments)
    grid = Grid.of(*(QUICK_GRID if pace.quick else (MEMORIES_MB, BATCHES, SHARE)))
    if (os.cpu_count() or 1) * MB_PER_CORE < max(grid.memories_mb):
        raise NoQuotaError(f"{max(grid.memories_mb)} MB are more cores than this machine has")
    entry = ensure_model(DirectoryRepository(MODELS), arguments.model, progress=step)
    name = f"{entry.name}@{entry.version}"
    identity = {
        "model": name,
        "program": entry.sha256["program.json"],
        "machine": f"{os.cpu_count()} × {processor()}",
        "torch": torch.__version__,
        "period_ms": arguments.period_ms,
        "runs": RUNS,
        "workers": arguments.workers,
        "allocator": "jemalloc" if jemalloc() else "glibc",
    }
    path = QUICK_RESULTS / f"regression_{'quick_' if pace.quick else ''}{name.replace(':', '_').replace('/', '_')}.jsonl"
    if arguments.afresh or pace.quick:
        path.unlink(missing_ok=True)
    kept = Kept(path, identity)
    visits = grid.visits(QUICK_ROUNDS if pace.quick else ROUNDS)
    if missing := kept.missing(visits):
        step(f"{name}: measuring; what is there is kept in {path}")
        with contextlib.ExitStack() as stack:
            workers = []
            for core in range(arguments.workers):
                quota = stack.enter_context(Quota(round(1000 * arguments.period_ms), number=core))
                worker = stack.enter_context(Worker(entry.program, entry.weights, quota, core))
                worker.settle(grid.batches)
                workers.append(worker)
            end_s = time.monotonic() + arguments.for_s
            measure(workers, missing, kept, runs=RUNS, end_s=end_s, say=step)
    how = f"{arguments.period_ms:g} ms periods, {identity['allocator']}, {arguments.workers} at once"
    conclude(grid, kept, visits, (name, how), pace.results)


def conclude(grid: Grid, kept: Kept, visits: Sequence[Visit], said: tuple[str, str], folder: Path) -> None:
    """Write what all visits say, or tell what those that were made do. `said`: which model, and how it was measured."""
    missing = len(kept.missing(visits))
    cells = kept.cells()
    if any(cell not in cells for cell in grid.trained) or len(cells) == len(grid.trained):
        step(f"{missing} visits are still to be made. Run it again.")
        return
    found = figures(grid, kept, visits[-1].round + 1, *said)
    if not missing:
        runs = min(len(times.seconds) for times in cells.values())
        write("regression", found, repeats=runs, packages=("gnomon", "torch", "numpy"), folder=folder)
        (folder / "regression_cells.csv").write_text(table(kept), encoding="utf-8")
        return
    for figure in found:
        step(f"so far: {figure.key} {figure.value:.4g}  {figure.detail}")
    step(f"{missing} visits are still to be made. Run it again; nothing was written yet.")


def _options() -> argparse.Namespace:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--model", default=MODEL, help=f"as `gnomon models add` names it; default {MODEL}")
    parser.add_argument("--period-ms", type=float, default=PERIOD_MS, help=f"of the quota; default {PERIOD_MS:g}")
    parser.add_argument(
        "--workers", type=int, default=1, help="cells of one thread to measure at once, each on a core; default 1"
    )
    parser.add_argument("--for-s", type=float, default=float("inf"), help="measure for so long, and go on another time")
    parser.add_argument("--afresh", action="store_true", help="forget what is kept")
    return parser.parse_args()


def _main() -> None:
    try:
        main(_options())
    except NoQuotaError as error:
        sys.exit(f"{error}.")


if __name__ == "__main__":
    ended_well(_main)
