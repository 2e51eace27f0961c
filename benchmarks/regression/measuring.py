"""Measuring the cells that are missing, each by a process under the quota of its memory size."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.pace import ROOT
from benchmarks.regression.cells import Cell, Grid, Kept, Times, cores_of, threads_of
from benchmarks.regression.quota import Quota

RESOLVED = 0.01
"""A median that is known to this needs no more runs."""
ENOUGH_S = 2.0
"""Nor does one whose runs took so long: what varies then varies from minute to minute."""
SAY_EVERY_S = 20.0


class Worker:
    """The process that computes, in a group whose processor time is bounded, for the length of a block."""

    def __init__(self, program: Path, weights: Path, quota: Quota) -> None:
        self._quota = quota
        command = [sys.executable, "-m", "benchmarks.regression.worker", str(program), str(weights)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        try:
            self._quota.join(self._process.pid)
            self._answer()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def times(self, cell: Cell, least: int, most: int) -> Times:
        """At least so many runs, more while their median is not known to 1 %."""
        memory_mb, batch = cell
        order = {"batch": batch, "threads": threads_of(memory_mb)}
        self._quota.lift()
        self._ask(order | {"runs": 0, "warm": 2})
        self._quota.set(cores_of(memory_mb))
        found, warm = Times((), ()), 1
        while True:
            more = self._ask(order | {"runs": least, "warm": warm})
            found = Times((*found.seconds, *more["seconds"]), (*found.core_s, *more["core_s"]))
            warm = 0
            if len(found.seconds) + least > most or found.uncertainty <= RESOLVED or sum(found.seconds) > ENOUGH_S:
                return found

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that computes has ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def measure(worker: Worker, grid: Grid, kept: Kept, *, runs: tuple[int, int], end_s: float, say: Callable[[str], None]) -> None:
    """Measure what is missing until all is there or until `end_s` of the monotonic clock. `runs`: fewest and most of a cell."""
    missing = kept.missing(grid)
    whole, begun_s, last_s = len(missing), time.monotonic(), 0.0
    # A cell takes as long as its batch is large and its share of a core small.
    costs = [batch / cores_of(memory_mb) for (memory_mb, batch), _ in missing]
    for number, (cell, again) in enumerate(missing):
        now_s = time.monotonic()
        if now_s >= end_s:
            return
        if now_s - last_s > SAY_EVERY_S:
            left_s = (now_s - begun_s) * sum(costs[number:]) / sum(costs[:number]) if number else 0.0
            say(f"{whole - number} cells to measure" + (f", about {left_s / 60:.0f} min" if number else ""))
            last_s = now_s
        kept.add(cell, worker.times(cell, *runs), again=again)
