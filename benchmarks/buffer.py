"""The latency behind a buffer against every batch of long runs, and how quickly all plans are predicted.

    python -m benchmarks.buffer [--quick]

**Accuracy.** Poisson processes, MMPP(2)s, MAP(2)s and the MAPs that BATCH's authors published, with B from 1 to 32 and T from
5 ms to 2 s; a batch of k takes 10 + 8k ms. Each case is run event by event, until the 95 % interval of each percentile, from
the spread of independent runs, is within 1 % of it or of the probability at it within 0.001, or 6 million requests have
passed: then the run is too short to judge, and its difference is said apart. A percentile is right if it is within 3 % of the
run's, or if the run's F there, where it jumps or is flat, is within 0.002 of q. The printed equations of BATCH are judged by
the same runs.

**Speed.** Percentile and cost of every plan, and the cheapest of them: 28 memory sizes × 49 timeouts × 20 batches, and with
one batch, as BATCH's published solver sweeps them. A live plan, as `batch` makes it from an hour of counts: 13 memory sizes × 48
timeouts × 14 batches up to 32, with nine ratios to the service times and without, for Poisson and for bursty arrivals; a decision
may take 1 s. Processor time of a process whose linear algebra has one thread; its first sweep, which loads what numpy loads late,
is said apart.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.programs import ROOT, Pace, pace_of, pace_parser, step
from benchmarks.report import Figure, measured, write
from benchmarks.simulation.markov import markov_arrivals
from gnomon_autoscaler.policies.batch.plans import BATCHES as PLANNED_BATCHES
from gnomon_autoscaler.policies.batch.plans import Task, plan_for
from gnomon_planner.billing import LAMBDA, PerCall
from gnomon_planner.buffer import BufferPlan
from gnomon_planner.latency import ExactLatency, PaperLatency, ServiceTimes
from gnomon_planner.maps import Map
from gnomon_planner.optimizer import Landscape
from gnomon_planner.plans import Size, Space
from gnomon_planner.validation import replay_buffer

Vector = npt.NDArray[np.float64]

PUBLISHED = Path(__file__).parent / "traces" / "batch_maps.json"
PUBLISHED_BURSTY = Path(__file__).parent / "traces" / "batch_maps_extra.json"
PERCENTS = (50.0, 90.0, 95.0, 99.0)
SLO_S = 0.4
SPREAD = 0.1  # how far batches are from their mean time, on average
# Of live plans: the rates of minutes, in turn, and the spread of service times.
LIVE = {
    "live_poisson": ((60.0,), SPREAD),
    "live_poisson_without_spread": ((60.0,), 0.0),
    "live_bursts": ((20.0, 200.0), SPREAD),
    "live_bursts_without_spread": ((20.0, 200.0), 0.0),
}
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
TIMEOUTS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0)
RELATIVE_GOAL, PROBABILITY_GOAL = 0.03, 0.002
ROUNDING = 1e-6  # atoms differ in their last digits between prediction and run, whose times are large
RUN, FEWEST_RUNS, MOST_RUNS = 200_000, 5, 30
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
SWEEP_GOAL_S, ONE_BATCH_GOAL_S, LIVE_GOAL_S = 0.5, 0.05, 0.5


@dataclass(frozen=True, slots=True)
class Case:
    """A buffer (B, T) and its arrivals."""

    name: str
    process: Map
    plan: BufferPlan

    @property
    def service_s(self) -> tuple[float, ...]:
        return tuple(0.010 + 0.008 * size for size in range(1, self.plan.batch + 1))


@dataclass(frozen=True, slots=True)
class Off:
    """The error of a percentile in time and in probability; `resolved` if the runs are long enough to tell."""

    relative: float
    probability: float
    resolved: bool

    @property
    def right(self) -> bool:
        return abs(self.relative) <= RELATIVE_GOAL or abs(self.probability) <= PROBABILITY_GOAL

    @property
    def counted(self) -> float:
        """The relative error; 0 where only F is a measure, at atoms and flat stretches."""
        return 0.0 if abs(self.probability) <= PROBABILITY_GOAL else abs(self.relative)


def processes() -> Iterator[tuple[str, Map]]:
    """The arrival processes of the benchmark."""
    for rate in (0.5, 5.0, 20.0, 52.0, 110.0, 500.0, 3000.0):
        yield f"Poisson {rate:g}/s", Map.poisson(rate)
    for slow, quick, leave_slow, leave_quick in (
        (10, 120, 5, 5),
        (100, 200, 30, 70),
        (5, 300, 0.5, 10),
        (0, 100, 20, 30),
        (40, 60, 0.5, 0.5),
        (1, 1000, 1, 20),
        (30, 90, 10, 3),
    ):
        yield f"MMPP {slow}|{quick}", Map.mmpp2((slow, quick), (leave_slow, leave_quick))
    rng = np.random.default_rng(17)
    for number in range(7):
        d0, d1 = 10.0 ** rng.uniform(-1, 2.3, (2, 2)), 10.0 ** rng.uniform(-1, 2.3, (2, 2))
        np.fill_diagonal(d0, 0.0)
        yield f"MAP {number}", Map(d0 - np.diag((d0 + d1).sum(axis=1)), d1)
    for family, hours in json.loads(PUBLISHED.read_text()).items():
        for hour in list(hours)[1::5]:
            yield f"{family} {hour}", Map.from_json(hours[hour])
    for name, document in json.loads(PUBLISHED_BURSTY.read_text())["synthetic_workload"].items():
        yield name, Map.from_json(document)


def cases(*, quick: bool) -> list[Case]:
    """Every process with six plans, chosen so that all batches and timeouts meet."""
    found = []
    for number, (name, process) in enumerate(processes()):
        for turn in range(6):
            batch = BATCHES[(3 * turn + number) % len(BATCHES)]
            timeout_s = TIMEOUTS_S[(7 * turn + 3 * number + turn // 2) % len(TIMEOUTS_S)]
            found.append(Case(f"{name}, B = {batch}, T = {timeout_s:g} s", process, BufferPlan(batch, timeout_s)))
    return found[::12] if quick else found


def judged(case: Case, seed: int, most_runs: int = MOST_RUNS) -> tuple[list[Off], list[Off]]:
    """The exact prediction and the paper's against runs that are long enough."""
    service = ServiceTimes.fixed(case.service_s)
    quantiles = np.array(PERCENTS) / 100.0
    exact = ExactLatency(case.process, case.plan, service)
    paper = PaperLatency(case.process, case.plan, service, literal=True)
    predicted = [np.array([kind.percentile(percent) for percent in PERCENTS]) for kind in (exact, paper)]
    runs: list[Vector] = []
    found: list[Vector] = []
    below: list[Vector] = []
    while True:
        rng = np.random.default_rng((seed, len(runs)))
        times = markov_arrivals(case.process, RUN, rng)
        latencies = np.sort(replay_buffer(times, case.plan.batch, case.plan.timeout_s).latency_s(case.service_s))
        runs.append(latencies)
        found.append(np.quantile(latencies, quantiles))
        below.append(np.searchsorted(latencies, predicted[0] * (1.0 + ROUNDING), side="right") / len(latencies))
        resolved = _narrow(found, below)
        if len(runs) >= FEWEST_RUNS and (resolved.all() or len(runs) >= most_runs):
            break
    pooled = np.sort(np.concatenate(runs))
    real = np.quantile(pooled, quantiles)
    return tuple([_off(pooled, quantiles, real, times_s, resolved) for times_s in predicted])  # type: ignore[return-value]


def _narrow(found: list[Vector], below: list[Vector]) -> npt.NDArray[np.bool_]:
    """The mask of percentiles known to 1 %, or in probability to 0.001."""
    if len(found) < FEWEST_RUNS:
        return np.zeros(len(PERCENTS), dtype=bool)
    scale = 2.8 / math.sqrt(len(found))  # of Student with 4 degrees; less with more
    times, shares = np.array(found), np.array(below)
    within: npt.NDArray[np.bool_] = (scale * times.std(axis=0, ddof=1) <= 0.01 * times.mean(axis=0)) | (
        scale * shares.std(axis=0, ddof=1) <= PROBABILITY_GOAL / 2.0
    )
    return within


def _off(pooled: Vector, quantiles: Vector, real: Vector, predicted: Vector, resolved: npt.NDArray[np.bool_]) -> list[Off]:
    before = np.searchsorted(pooled, predicted * (1.0 - ROUNDING), side="left") / len(pooled)
    upto = np.searchsorted(pooled, predicted * (1.0 + ROUNDING), side="right") / len(pooled)
    outside = np.maximum(0.0, np.maximum(before - quantiles, quantiles - upto))
    return [
        Off(float(relative), float(probability), bool(known))
        for relative, probability, known in zip(predicted / real - 1.0, outside, resolved, strict=True)
    ]


def accuracy(pace: Pace) -> list[Figure]:
    """Percentiles against runs."""
    exact: list[tuple[str, Off]] = []
    paper: list[Off] = []
    every = cases(quick=pace.quick)
    for number, case in enumerate(every):
        mine, theirs = judged(case, number, 5 if pace.quick else MOST_RUNS)
        exact += [(f"P{percent:g} of {case.name}", off) for percent, off in zip(PERCENTS, mine, strict=True)]
        paper += theirs
    known = [(name, off) for name, off in exact if off.resolved]
    worst_name, worst = max(known, key=lambda row: row[1].counted)
    wrong = [name for name, off in known if not off.right]
    said = f"{worst_name}; {len(every)} cases, {len(known)} percentiles that the runs know to 1 %"
    unknown = [abs(off.relative) for _, off in exact if not off.resolved]
    unknown_said = f"of {len(unknown)} percentiles of slow bursts that runs of 6 million requests do not know to 1 %"
    relatives = [off.relative for off in paper]
    gap = max(off.probability for _, off in known)
    right = sum(off.right for off in paper)
    theirs_said = f"the printed equations: {min(relatives):+.1%} to {max(relatives):+.1%}, right in {right} of {len(paper)}"
    met = "missed" if wrong else "met"
    return [
        Figure("worst_error", worst.counted, "relative", RELATIVE_GOAL, "<=", met, said),
        Figure("wrong_percentiles", len(wrong), "", 0.0, "<=", met, "; ".join(wrong[:8])),
        Figure("worst_difference_where_runs_are_too_short", max(unknown, default=0.0), "relative", detail=unknown_said),
        Figure("largest_probability_gap", gap, "", detail="between the run's F at the prediction and q"),
        Figure("paper_worst_error", max(abs(relative) for relative in relatives), "relative", detail=theirs_said),
    ]


def sweeps(pace: Pace) -> list[Figure]:
    """Every plan of BATCH's search space, and the cheapest; and what a live plan takes."""
    figures = []
    goals = {"sweep_all_batches": SWEEP_GOAL_S, "sweep_one_batch": ONE_BATCH_GOAL_S} | dict.fromkeys(LIVE, LIVE_GOAL_S)
    for key, goal_s in goals.items():
        command = [sys.executable, "-m", "benchmarks.buffer", "--time-sweep", key, str(pace.repeats)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **ONE_THREAD})
        found = json.loads(done.stdout)
        first_s, *taken = found["taken_s"]
        detail = f"{found['plans']} plans; the cheapest within 400 ms: {found['cheapest']}; the first {first_s * 1e3:.0f} ms"
        figures.append(measured(key, taken, "s", at_most=goal_s, detail=detail))
    return figures


def time_sweep(key: str, repeats: int) -> None:
    """Print what `repeats` sweeps took, after a first one."""
    work, plans = live(key) if key in LIVE else sweep((20,) if key == "sweep_one_batch" else tuple(range(1, 21)))
    taken = []
    for _ in range(repeats + 1):
        begun_s = time.process_time()
        cheapest = work()
        taken.append(time.process_time() - begun_s)
    print(json.dumps({"plans": plans, "cheapest": cheapest, "taken_s": taken}))


def sweep(batches: tuple[int, ...]) -> tuple[Callable[[], str], int]:
    """Works out every percentile and finds the cheapest plan; and how many plans there are."""
    process = Map.from_json(json.loads(PUBLISHED.read_text())["Twitter"]["15"])
    sizes = tuple(
        Size(f"{memory} MB", memory, memory / 1769, tuple((0.02 + 0.012 * batch) * 3008 / memory for batch in range(1, 21)))
        for memory in range(1280, 3009, 64)
    )
    space = Space(sizes, batches, tuple(number / 100.0 for number in range(1, 50)))

    def cheapest() -> str:
        landscape = Landscape(process, space, PerCall(LAMBDA["x86"]), 95.0)
        assert np.isfinite(landscape.latency_s).all()
        return str(landscape.cheapest(SLO_S).plan)

    return cheapest, len(sizes) * len(batches) * len(space.timeouts_s)


def live(key: str) -> tuple[Callable[[], str], int]:
    """Fits an hour of counts and plans for it as the policies do; and how many plans there are."""
    rates, deviation = LIVE[key]
    counts = np.random.default_rng(1).poisson(np.repeat(np.resize(rates, 60), 60)).astype(float).tolist()
    rows = {
        memory: tuple((0.02 + 0.012 * batch) * (0.1 + 0.9 * 1769 / memory) for batch in range(1, BATCHES[-1] + 1))
        for memory in range(512, 10_241, 800)
    }
    task = Task(SLO_S, 95.0, rows[2112], 2, 2112 * 2**20, SLO_S, 1000, 2112, rows, deviation=deviation)
    plans = len(task.sizes) * len(task.timeouts_s) * len(PLANNED_BATCHES)

    def cheapest() -> str:
        found = plan_for(counts, 1.0, task)
        return f"{found.size} MB, B = {found.batch}, T = {found.timeout_s * 1e3:g} ms"

    return cheapest, plans


def main() -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--time-sweep", nargs=2, metavar=("KEY", "REPEATS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.time_sweep:
        time_sweep(arguments.time_sweep[0], int(arguments.time_sweep[1]))
        return
    pace = pace_of(arguments)
    figures: list[Figure] = []
    for part in (sweeps, accuracy):
        step((part.__doc__ or "").splitlines()[0])
        figures += part(pace)
    write("buffer", figures, repeats=pace.repeats, packages=("gnomon", "numpy"), folder=pace.results)


if __name__ == "__main__":
    main()
