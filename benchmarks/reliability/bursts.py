"""`batch` beside `kpa` under bursts: how many answers are late, and how many cores each held for it.

    python -m benchmarks.reliability.bursts [--quick]

Two functions of the same work, 40 ms a batch and 5 ms for each member, with an objective of P95 ≤ 300 ms, in one `gnomon serve`
with four cores for each of them: the work only sleeps, so that cores are counted and not used. Both get the same arrivals at
the same time from a generator of their own: Poisson, 20/s, three times 160/s for a minute, and before the last burst ten idle
seconds, which once kept the test for changes blind. A request is late if it is not answered 200 within the objective of its
intended time. Core-seconds are those of all instances, looked at four times a second. Each third of the run is one measurement.

`kpa` aims at one request in the system per instance, so that it meets the objective. By its default here, a full batch of 16,
it holds about as many core-seconds as `batch` and is late more often (6.1 % beside 5.0 %, 363 beside 330 core-seconds in each
third, on four cores with a load of 27).

The first 45 s, in which `batch` has no plan yet, belong to the run and to the figures.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

from benchmarks import gnomon
from benchmarks.load import lag_p99_ms, rows
from benchmarks.programs import Endpoint, Pace, start, step
from benchmarks.report import Figure, measured, write
from gnomon_simulator.arrivals import poisson
from gnomon_simulator.replay import Plan, Target, replay_apart
from gnomon_simulator.replay_report import Report

SLO_S = 0.3
DEADLINE_S = 10.0
CORES = 8
LOW_RPS = 20.0
HIGH_RPS = 160.0
EVERY_S = 0.25
SYSTEMS = {"batch": "bursts-batch", "kpa": "bursts-kpa"}


@dataclass(frozen=True, slots=True)
class Part:
    """A third of the run: seconds and requests per second, one after the other."""

    rates: tuple[tuple[float, float], ...]

    @property
    def duration_s(self) -> float:
        return sum(seconds for seconds, _ in self.rates)

    def arrivals(self, rng: random.Random) -> list[float]:
        """Arrival times in seconds from the part's start."""
        found, begin_s = [], 0.0
        for seconds, rate_rps in self.rates:
            found += [begin_s + at_s for at_s in (poisson(rate_rps, seconds, rng) if rate_rps else ())]
            begin_s += seconds
        return found


def parts(pace: Pace) -> list[Part]:
    """The run in thirds; a quick one has bursts of a quarter of the length."""
    high = (pace.overload_s, HIGH_RPS)
    rest_s = 15.0 if pace.quick else 60.0
    calm = Part(((45.0, LOW_RPS), high, (rest_s, LOW_RPS)))
    idle = Part(((rest_s / 2, LOW_RPS), (10.0, 0.0), (rest_s / 2, LOW_RPS), high, (rest_s, LOW_RPS)))
    return [calm, calm, idle]


def main(pace: Pace) -> None:
    thirds = parts(pace)
    rng, times_s, edges_s = random.Random(1), [], [0.0]
    for part in thirds:
        times_s += [edges_s[-1] + at_s for at_s in part.arrivals(rng)]
        edges_s.append(edges_s[-1] + part.duration_s)
    with gnomon.serving(options=("--cores", str(CORES))) as ours:
        endpoints = {system: ours.up(name, "sleep-each") for system, name in SYSTEMS.items()}
        cores = Cores(ours, tuple(SYSTEMS.values()))
        with ThreadPoolExecutor(len(endpoints)) as pool:
            sending = {system: pool.submit(sent, endpoint, times_s) for system, endpoint in endpoints.items()}
            with cores:
                reports = {system: task.result() for system, task in sending.items()}
        decisions = {system: ours.call("GET", f"/gnomon/functions/{name}/decisions") for system, name in SYSTEMS.items()}
    figures: list[Figure] = []
    late = {system: [100.0 * share for share in late_shares(report, edges_s)] for system, report in reports.items()}
    held = {}
    for system, report in reports.items():
        held[system] = cores.seconds(SYSTEMS[system], [report.started_monotonic_s + edge_s for edge_s in edges_s])
        step(f"{system}: late {shown(late[system])} %, {shown(held[system])} core-seconds\n{report.table()}")
        last = decisions[system][0]
        step(f"{system}: {len(decisions[system])} decisions, the last: {last['policy']}: {last['reason']}")
    thirds_said = "each third of the run"
    figures.append(measured("late (batch)", late["batch"], "%", at_most=5.0, detail=thirds_said))
    figures.append(measured("late (kpa)", late["kpa"], "%", detail=thirds_said))
    figures += [measured(f"core_seconds ({system})", held[system], "core-s", detail=thirds_said) for system in SYSTEMS]
    ratios = [ours / theirs for ours, theirs in zip(held["batch"], held["kpa"], strict=True)]
    figures.append(measured("core_seconds, batch of kpa's", ratios, "", at_most=0.5, detail=thirds_said))
    figures.append(measured("generator_lag_p99", [lag_p99_ms(report) for report in reports.values()], "ms"))
    write("reliability_bursts", figures, repeats=1, packages=("gnomon",), folder=pace.results)


def sent(endpoint: Endpoint, times_s: Sequence[float]) -> Report:
    """The outcome of each request."""
    plan = Plan(times_s, DEADLINE_S, max_connections=2048, open_first=64)
    return replay_apart(plan, Target(endpoint.url, headers=endpoint.headers, body=endpoint.body))


def late_shares(report: Report, edges_s: Sequence[float]) -> list[float]:
    """The share of late requests of each part."""
    counts = [[0, 0] for _ in edges_s[1:]]
    for row in rows(report):
        place = next(number for number, end_s in enumerate(edges_s[1:]) if row.intended_s < end_s)
        counts[place][0] += 1
        counts[place][1] += not (row.succeeded and row.answered_s - row.intended_s <= SLO_S)
    return [late / max(1, count) for count, late in counts]


class Cores:
    """The cores that functions' instances have, looked at while the block lasts."""

    def __init__(self, ours: gnomon.Gnomon, names: Sequence[str]) -> None:
        self._ours, self._names = ours, names
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._looks: dict[str, list[tuple[float, float]]] = {name: [] for name in names}

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def seconds(self, name: str, edges_s: Sequence[float]) -> list[float]:
        """Core-seconds between each two of these moments of the monotonic clock."""
        found = [0.0] * (len(edges_s) - 1)
        looks = self._looks[name]
        for (at_s, cores), (next_s, _) in pairwise(looks):
            for number, (begin_s, end_s) in enumerate(pairwise(edges_s)):
                found[number] += cores * max(0.0, min(next_s, end_s) - max(at_s, begin_s))
        return found

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            for name in self._names:
                detail = self._ours.call("GET", f"/gnomon/functions/{name}")
                self._looks[name].append((time.monotonic(), float(sum(body["cores"] for body in detail["bodies"]))))


def shown(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3g}" for value in values)


if __name__ == "__main__":
    start(main, __doc__)
