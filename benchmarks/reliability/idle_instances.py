"""Twelve idle instances: what `adaptive` answers beside `immediate`, and how long a lone request takes beside its execution.

    python -m benchmarks.reliability.idle_instances [--quick]

A handler that takes 160 ms a request, one after the other whatever the batch, with batches of up to eight, and objective and
deadline of one second: the default where only `gnomon/deadline-ms` is set. On `gnomon serve`, twelve instances of it, of which
20 requests/s keep three to four busy; the schedulers take turns on the same arrivals. Then lone requests, with pauses of half
a second to a second and a half. `adaptive-fill` and `adaptive-paper` spend the objective on filling batches and are there to be
seen beside. The instances sleep, so twelve need no twelve cores: `--cores` says that the machine has them.
"""

from __future__ import annotations

import json
import statistics
import time

from benchmarks import gnomon
from benchmarks.load import lag_p99_ms, rows, send
from benchmarks.programs import Endpoint, Pace, start, step
from benchmarks.report import Figure, measured, write
from gnomon_simulator.replay_report import Report
from gnomon_simulator.results import percentile

NAME = "sleep160"
INSTANCES = 12
RATE_RPS = 20.0
DEADLINE_S = 1.0
SCHEDULERS = ("adaptive", "immediate", "adaptive-fill", "adaptive-paper")
JUDGED = ("adaptive", "immediate")
LONE = 10


def main(pace: Pace) -> None:
    repeats, seconds = (2, 10.0) if pace.quick else (3, 20.0)
    answered: dict[str, list[float]] = {scheduler: [] for scheduler in SCHEDULERS}
    means_ms: dict[str, list[float]] = {scheduler: [] for scheduler in SCHEDULERS}
    lone: dict[str, list[float]] = {scheduler: [] for scheduler in JUDGED}
    lags_ms: list[float] = []
    with gnomon.serving(options=("--cores", str(INSTANCES))) as ours:
        for repeat in range(repeats):
            for scheduler in SCHEDULERS if repeat % 2 == 0 else SCHEDULERS[::-1]:
                endpoint = deployed(ours, scheduler)
                report = send(endpoint, RATE_RPS, seconds, DEADLINE_S, seed=repeat)
                answered[scheduler].append(report.succeeded / len(report.samples))
                means_ms[scheduler].append(mean_ms(report))
                lags_ms.append(lag_p99_ms(report))
                step(f"{scheduler}: {report.succeeded} of {len(report.samples)}, mean {means_ms[scheduler][-1]:.0f} ms")
                if scheduler in JUDGED:
                    lone[scheduler] += [ratio(endpoint, number) for number in range(LONE)]
    write(
        "reliability_idle_instances",
        [*figures(answered, means_ms, lone), measured("generator_lag_p99", lags_ms, "ms")],
        repeats=repeats,
        packages=("gnomon",),
        folder=pace.results,
    )


def deployed(ours: gnomon.Gnomon, scheduler: str) -> Endpoint:
    """The function with this scheduling policy and all of its instances, each of which has executed something."""
    endpoint = ours.up(NAME, annotations={"gnomon/scheduler": scheduler})
    ours.scale(NAME, INSTANCES)
    send(endpoint, RATE_RPS, 3.0, DEADLINE_S, seed=99)
    time.sleep(DEADLINE_S)
    return endpoint


def ratio(endpoint: Endpoint, number: int) -> float:
    """The latency of a lone request, as a multiple of its execution time."""
    time.sleep(0.5 + number / LONE)
    begun_s = time.monotonic()
    answer = json.loads(endpoint.ask())
    return (time.monotonic() - begun_s) / float(answer["took_s"])


def mean_ms(report: Report) -> float:
    """The mean latency of the answered requests."""
    return 1e3 * statistics.fmean([row.answered_s - row.intended_s for row in rows(report) if row.succeeded] or [0.0])


def figures(answered: dict[str, list[float]], means_ms: dict[str, list[float]], lone: dict[str, list[float]]) -> list[Figure]:
    shares = [ours / theirs for ours, theirs in zip(answered["adaptive"], answered["immediate"], strict=True)]
    worst = percentile(sorted(lone["adaptive"]), 100) or 0.0
    return [
        measured(
            "adaptive: answered_of_immediate", shares, "", at_least=0.99, detail=f"of {RATE_RPS:g}/s within {DEADLINE_S:g} s"
        ),
        measured(
            "adaptive: lone_latency_of_execution", lone["adaptive"], "", at_most=1.5, detail=f"the longest {worst:.2f} times"
        ),
        measured("immediate: lone_latency_of_execution", lone["immediate"], ""),
        *(measured(f"{name}: answered", [100 * share for share in answered[name]], "%") for name in SCHEDULERS),
        *(measured(f"{name}: mean_latency", means_ms[name], "ms") for name in SCHEDULERS),
    ]


if __name__ == "__main__":
    start(main, __doc__)
