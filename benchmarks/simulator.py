"""The simulator's speed: one hour of the Twitter trace, `k-lv` over at least 8 instances, on one core.

    python -m benchmarks.simulator [--quick]

The hour from second 74,220 holds 179,905 requests. An instance takes 220 ms for one request and 1.56 s for eight, so that the
trace's 50 requests/s need about ten instances and `k-lv` keeps about fifteen. Each repeat runs `adaptive` and `immediate` in
turn, in this one thread; reading the trace and drawing its arrivals is part of the time. Processor time is the time on one core;
the wall's time is the same on a machine with a core to spare.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.programs import Pace, start
from benchmarks.report import Figure, measured, write
from gnomon_core.profiles import LatencyTable
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.arrivals import from_trace
from gnomon_simulator.events import stream
from gnomon_simulator.profiles import Profile
from gnomon_simulator.results import FunctionResult, table
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate
from gnomon_simulator.traces import read_trace

TRACE = Path(__file__).parent / "traces" / "twitter_may25_1s.csv.gz"
START_S, HOUR_S = 74_220.0, 3600.0
SCHEDULERS = ("adaptive", "immediate")
GOAL_S = 5.0
FEWEST = 8
PROFILE = Profile("function", LatencyTable({1: {1: 0.22, 2: 0.42, 4: 0.80, 8: 1.56}}), load_s=1.0)
NODES = [NodePlan(f"node-{number}", 16) for number in range(1, 4)]


def settings(scheduler: str) -> Settings:
    scale = ScaleSettings(min=FEWEST, max=48)
    return Settings(autoscaler="k-lv", scheduler=scheduler, slo_s=2.0, deadline_s=10.0, max_batch=8, scale=scale)


def once(trace: Path, scheduler: str) -> tuple[float, float, FunctionResult]:
    """Wall and processor seconds of one run, and what it found."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    hour = read_trace(trace).slice(START_S, HOUR_S)
    plan = FunctionPlan("function", settings(scheduler), PROFILE, from_trace(hour, stream(1, "arrivals")), warm=FEWEST)
    result = simulate([plan], NODES, seed=1)["function"]
    return time.perf_counter() - wall_s, time.process_time() - cpu_s, result


def main(pace: Pace) -> None:
    walls: dict[str, list[float]] = {scheduler: [] for scheduler in SCHEDULERS}
    cpus: dict[str, list[float]] = {scheduler: [] for scheduler in SCHEDULERS}
    results: dict[str, FunctionResult] = {}
    for _ in range(pace.repeats):
        for scheduler in SCHEDULERS:
            wall_s, cpu_s, results[scheduler] = once(TRACE, scheduler)
            walls[scheduler].append(wall_s)
            cpus[scheduler].append(cpu_s)
    figures: list[Figure] = []
    for scheduler, result in results.items():
        found = result.summary()
        said = (
            f"{found['requests']} requests, {found['mean_instances']:.1f} instances on average, "
            f"{found['violation_rate']:.2%} over the SLO"
        )
        goal_s = GOAL_S if scheduler == "adaptive" else None
        figures.append(measured(f"hour_{scheduler}_core", cpus[scheduler], "s", at_most=goal_s, detail=said))
        figures.append(measured(f"hour_{scheduler}_wall", walls[scheduler], "s", at_most=goal_s))
    fewest = min(result.fewest_instances for result in results.values())
    figures.append(measured("fewest_instances", [fewest], "instances", at_least=FEWEST))
    write("simulator", figures, repeats=pace.repeats, packages=("gnomon",), folder=pace.results)
    print(table(list(results.values())))


if __name__ == "__main__":
    start(main, __doc__)
