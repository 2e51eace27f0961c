"""Figure 9: what planning takes of the machine that it runs on, in a process of its own; a line of JSON.

    python -m benchmarks.reports.batch.hosted HOURS SECONDS SPACE

Hours of Twitter, of 3,600 seconds or fewer, are counted second by second, as a policy counts them; at the end of each a process
is fitted to it and every plan of the space is predicted. `SPACE` is JSON: memories, batches, timeouts. Then one plan each for
Poisson processes of very different rates, for the claim that their rate does not matter.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gnomon_core.errors import bad_request
from gnomon_planner.billing import LAMBDA, PerCall
from gnomon_planner.fit import fit
from gnomon_planner.maps import Map
from gnomon_planner.optimizer import Landscape
from gnomon_planner.plans import Size, Space
from gnomon_planner.samples import sample_of_counts
from gnomon_simulator.traces import read_trace

HOUR = 3600
KIB_PER_MB = 1024.0
RATES = (1.0, 10.0, 100.0, 1000.0)
SLO_S, PERCENT = 1.0, 95.0
FIRST_HOUR = 9


class ArrivalWindow:
    """Counts per bin of the last `window_s`, on a grid of `bin_s` from `start_s`."""

    def __init__(self, start_s: float, window_s: float = HOUR, bin_s: float = 1.0) -> None:
        if not (math.isfinite(start_s) and bin_s > 0.0 and window_s >= bin_s):
            raise bad_request("bad_window", f"{window_s} s in bins of {bin_s} s.", "A window holds at least one bin above 0 s.")
        self.bin_s = bin_s
        self._start_s = start_s
        self._counts: deque[int] = deque([0], maxlen=round(window_s / bin_s) + 1)
        self._last = 0

    def add(self, times_s: Iterable[float]) -> None:
        """Add arrivals. Late ones count in their own bin, if that is still in the window."""
        for time_s in times_s:
            self._reach(time_s)
            place = self._place(time_s) - self._last + len(self._counts) - 1
            if place >= 0:
                self._counts[place] += 1

    def counts(self, now_s: float, since_s: float = -math.inf) -> tuple[int, ...]:
        """The counts of the bins that have ended by `now_s`, from `since_s` on; the oldest first."""
        self._reach(now_s)
        first_s = self._start_s + (self._last - len(self._counts) + 1) * self.bin_s
        skipped = max(0, math.ceil((since_s - first_s) / self.bin_s - 1e-9)) if since_s > first_s else 0
        return tuple(self._counts)[skipped:-1]

    def _place(self, time_s: float) -> int:
        return math.floor((time_s - self._start_s) / self.bin_s)

    def _reach(self, time_s: float) -> None:
        ahead = self._place(time_s) - self._last
        if ahead > 0:
            self._counts.extend([0] * min(ahead, self._counts.maxlen or ahead))
            self._last += ahead


def main(hours: int, hour_s: int, asked: dict[str, Any]) -> None:
    from benchmarks.arrivals import TRACE

    batches = tuple(asked["batches"])
    space = Space(
        tuple(_size(memory_mb, max(batches)) for memory_mb in asked["memories_mb"]), batches, tuple(asked["timeouts_s"])
    )
    counts = read_trace(TRACE).counts
    window = ArrivalWindow(0.0)
    found = []
    for hour in range(hours):
        begun_s = time.process_time()
        for second in range(hour_s):
            now_s = hour * hour_s + second
            count = int(counts[FIRST_HOUR * HOUR + now_s])
            window.add(now_s + (place + 0.5) / count for place in range(count))
        counting_s = time.process_time() - begun_s
        held_mb = _resident_mb()
        seen = window.counts((hour + 1) * float(hour_s))
        process, fit_s, _ = _timed(partial(_fitted, seen))
        plan, plan_s, wall_s = _timed(partial(_planned, process, space))
        found.append(
            {
                "counting_s": counting_s,
                "fit_s": fit_s,
                "plan_s": plan_s,
                "plan_wall_s": wall_s,
                "held_mb": held_mb,
                "after_mb": _resident_mb(),
                "plan": plan,
            }
        )
    rates = {}
    for rate in RATES:
        _, rates[f"{rate:g}"], _ = _timed(partial(_planned, Map.poisson(rate), space))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_MB
    print(
        json.dumps(
            {"hours": found, "rates": rates, "peak_mb": peak_mb, "plans": len(space.sizes) * len(batches) * len(space.timeouts_s)}
        )
    )


def _size(memory_mb: float, batches: int) -> Size:
    return Size(
        f"{memory_mb} MB",
        memory_mb,
        memory_mb / 1769,
        tuple((0.02 + 0.012 * number) * 3008 / memory_mb for number in range(1, batches + 1)),
    )


def _fitted(counts: Sequence[int]) -> Map:
    return fit(sample_of_counts(counts, 1.0)).process


def _planned(process: Map, space: Space) -> str:
    return str(Landscape(process, space, PerCall(LAMBDA["x86"]), PERCENT).cheapest(SLO_S).plan)


def _timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result, and the processor and the wall seconds it took."""
    begun_s, used_s = time.perf_counter(), time.process_time()
    result = work()
    return result, time.process_time() - used_s, time.perf_counter() - begun_s


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
