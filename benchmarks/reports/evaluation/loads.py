"""The arrival processes: each becomes arrival times of a mean rate, for one function or several.

| name | arrivals |
| --- | --- |
| `twitter` | Twitter, 25 May, from second 74,220: counts per second scaled to the rate, their noise with them |
| `twitter-natural` | the same minutes' means, scaled, with the noise that is natural to the rate: Poisson within each minute |
| `azure` | Azure Functions 2019, counts per minute over a day, from its busiest hour: Poisson within each minute |
| `azure-8` | the same, split over eight functions of one cluster: the k-th has a share of 1/k |
| `calm`, `mmpp`, `on-off` | two-state MMPPs, mean stays of 60 and 12 s: 0.95/1.25, 0.8/2 and 0/6 times the rate |
| `file:PATH` | any file that `gnomon_simulator.arrivals` reads, counts scaled to the rate; time stamps thinned or repeated |
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gnomon_core.errors import bad_request
from gnomon_simulator.arrivals import from_trace, read_demand
from gnomon_simulator.events import stream
from gnomon_simulator.traces import Trace

TRACES = Path(__file__).parents[2] / "traces"
TWITTER, TWITTER_START_S = TRACES / "twitter_may25_1s.csv.gz", 74_220.0
AZURE = TRACES / "azure_functions_2019_invitro1350_day_1min.csv"
MINUTE_S = 60.0
STAYS_S = (60.0, 12.0)
MMPPS = {"calm": (0.95, 1.25), "mmpp": (0.8, 2.0), "on-off": (0.0, 6.0)}
"""Rates of the two states, as multiples of the mean rate: 5/6 of the time in the first, 1/6 in the second."""
FUNCTIONS = 8
FILE = "file:"


def arrivals(load: str, rate_rps: float, duration_s: float, seed: int) -> list[Sequence[float]]:
    """The arrival times of each function, from second 0.

    Raises:
        GnomonError: 400 `bad_trace` for a file that is not understood, `bad_load` for a name that is not known or no arrival.

    """
    rng = stream(seed, f"arrivals of {load}")
    if load in MMPPS:
        found: list[Sequence[float]] = [mmpp(rate_rps, duration_s, MMPPS[load], rng)]
        # One seed in twenty is off for all of a run of three minutes, which says nothing about a policy: its next draw counts.
        while not any(found) and rate_rps > 0.0:
            found = [mmpp(rate_rps, duration_s, MMPPS[load], rng)]
    elif load == "azure-8":
        found = list(_split(from_trace(_scaled(_demand(load), rate_rps, duration_s), rng), rng))
    else:
        found = [from_trace(_scaled(_demand(load), rate_rps, duration_s), rng)]
    if not any(found):
        raise bad_request("bad_load", f"{load} has no arrival in its first {duration_s:g} s.", "Name a longer or busier trace.")
    return found


def mmpp(rate_rps: float, duration_s: float, levels: Sequence[float], rng: random.Random) -> list[float]:
    """Arrivals of a two-state Markov-modulated Poisson process; the state at second 0 is the first."""
    times: list[float] = []
    begin_s, state = 0.0, 0
    while begin_s < duration_s:
        end_s = min(duration_s, begin_s + rng.expovariate(1.0 / STAYS_S[state]))
        level_rps = levels[state] * rate_rps
        at_s = begin_s + rng.expovariate(level_rps) if level_rps > 0.0 else math.inf
        while at_s < end_s:
            times.append(at_s)
            at_s += rng.expovariate(level_rps)
        begin_s, state = end_s, 1 - state
    return times


@cache
def _demand(load: str) -> Trace:
    if load.startswith(FILE):
        return _counted(Path(load.removeprefix(FILE)))
    if load.startswith("twitter"):
        demand = _counted(TWITTER).slice(TWITTER_START_S, None)
        return _by_minute(demand) if load == "twitter-natural" else demand
    if load.startswith("azure"):
        day = _counted(AZURE)
        hour = round(3600.0 / day.bin_s)
        busiest = max(range(len(day.counts) - hour + 1), key=lambda first: sum(day.counts[first : first + hour]))
        return day.slice(busiest * day.bin_s, None)
    raise bad_request(
        "bad_load", f"{load!r} is no arrival process.", "See benchmarks/reports/evaluation/loads.py, or name a file."
    )


def _counted(path: Path) -> Trace:
    """A file's demand as counts; times become counts per second."""
    demand = read_demand(path)
    if isinstance(demand, Trace):
        return demand
    counts = [0.0] * (math.floor(max(demand, default=0.0)) + 1)
    for time_s in demand:
        if not math.isfinite(time_s) or time_s < 0.0:
            raise bad_request("bad_trace", f"{path.name}: {time_s} is no time of a request.", "Times are seconds, finite.")
        counts[math.floor(time_s)] += 1.0
    return Trace(1.0, tuple(counts))


def _by_minute(demand: Trace) -> Trace:
    each = round(MINUTE_S / demand.bin_s)
    whole = len(demand.counts) // each * each
    return Trace(MINUTE_S, tuple(sum(demand.counts[first : first + each]) for first in range(0, whole, each)))


def _scaled(demand: Trace, rate_rps: float, duration_s: float) -> Trace:
    part = demand.slice(0.0, duration_s)
    if not part.requests:
        raise bad_request("bad_load", f"There is not one request in the first {duration_s:g} s.", "Name a busier trace.")
    return part.scaled(rate_rps * part.duration_s / part.requests)


def _split(times: Sequence[float], rng: random.Random) -> Sequence[Sequence[float]]:
    shares = [1.0 / number for number in range(1, FUNCTIONS + 1)]
    functions: list[list[float]] = [[] for _ in shares]
    for time_s in times:
        rng.choices(functions, shares)[0].append(time_s)
    return functions
