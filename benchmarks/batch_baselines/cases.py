"""Which demands meet which objectives, and what is for sale.

**Demand.** Hours of Twitter's day, after its first hour, which is history; the same of the Azure functions' sum; and what bursts,
the published MMPP(2) W14, drawn for two hours and one of history. Counts were recorded by the second and by the minute;
requests are uniform in their bin.

**Supply.** ResNet50 as `profiles/` has it, measured on one and two cores. A function of m MB has c = m/1769 cores: below one core
a batch takes t(1)/c; between one and two t(1)·c^log₂(t(2)/t(1)), which is right at both. Memory ends at the 3,008 MB of the
paper's day. A machine is the share of a c5.4xlarge that has two cores, at an eighth of its price, which is also what c5.large
costs; it serves two minutes after it was asked for.

**Objectives.** P95 within 800 ms, in which batches of eight have room, and within 150 ms, which is strict; under W14 P99, as in
the paper's Figure 16.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.batch_baselines.values import HOUR_S, Demand, Objective, Supply
from benchmarks.buffer import PUBLISHED_BURSTY
from benchmarks.pace import ROOT
from gnomon_core.profiles import LatencyTable, ModelProfile
from gnomon_core.units import MB_PER_CORE
from gnomon_planner.costs import EC2, LAMBDA
from gnomon_planner.maps import Map
from gnomon_planner.plans import Size
from gnomon_simulator.arrivals import from_trace, markov_arrivals
from gnomon_simulator.events import stream
from gnomon_simulator.traces import read_trace

TRACES = ROOT / "benchmarks" / "traces"
TWITTER = TRACES / "twitter_may25_1s.csv.gz"
AZURE = TRACES / "azure_functions_2019_invitro1350_day_1min.csv"
PROFILE = ROOT / "profiles" / "resnet50.json"
BURSTY = "W14"
BURSTY_HOURS = 2.0
HOURS = 3.0
LONGEST = {"Twitter": 22.0, "Azure": 23.0}
"""Full hours after the first."""
SEED = 14
MEMORIES_MB = (*range(512, 3008, 128), 3008)
MACHINE, MACHINE_CORES, MACHINE_MB = "c5.4xlarge", 2, 4096.0
START_S = 120.0
BATCHES = 8


@dataclass(frozen=True, slots=True)
class Case:
    """A demand for so many hours after one hour of history, and what is asked for."""

    demand: str
    hours: float
    objective: Objective

    @property
    def key(self) -> str:
        """What it goes by."""
        return f"{self.demand}, {self.hours:g} h, P{self.objective.percent:g} ≤ {self.objective.slo_s * 1e3:g} ms"


def cases(*, quick: bool, hours: float = HOURS) -> list[Case]:
    """What is compared over so many hours; --quick is a quarter of an hour of two demands."""
    loose, strict, bursty = Objective(0.8, 95.0), Objective(0.15, 95.0), Objective(0.8, 99.0)
    if quick:
        return [Case("Twitter", 0.25, loose), Case(BURSTY, 0.25, bursty)]
    days = [Case(name, min(hours, longest), objective) for name, longest in LONGEST.items() for objective in (loose, strict)]
    return [*days, Case(BURSTY, min(hours, BURSTY_HOURS), bursty)]


def demand_of(case: Case) -> Demand:
    """Its arrivals, an hour of history before them."""
    whole = _WHOLE[case.demand]
    times_s = _arrivals(case.demand)
    return Demand(times_s[times_s < HOUR_S + case.hours * HOUR_S], HOUR_S, whole)


_WHOLE: Mapping[str, float | None] = {"Twitter": 1.0, "Azure": 60.0, BURSTY: None}
"""The bins in which each was recorded; None: exactly."""


@cache
def _arrivals(name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    if name == BURSTY:
        process = Map.from_json(json.loads(PUBLISHED_BURSTY.read_text(encoding="utf-8"))["synthetic_workload"][BURSTY])
        count = math.ceil(process.rate_rps * HOUR_S * (1.0 + BURSTY_HOURS) * 1.2)
        return markov_arrivals(process, count, np.random.default_rng(SEED))
    path = {"Twitter": TWITTER, "Azure": AZURE}[name]
    return np.array(from_trace(read_trace(path), stream(1, "arrivals")))


@cache
def supply(profile: Path = PROFILE) -> Supply:
    """What is for sale."""
    model = ModelProfile.from_json(json.loads(profile.read_text(encoding="utf-8")))
    machine = Size(f"a share of {MACHINE} with {MACHINE_CORES} cores", MACHINE_MB, MACHINE_CORES, _row(model.whole, 2.0))
    functions = tuple(
        Size(f"{memory_mb} MB", memory_mb, memory_mb / MB_PER_CORE, _row(model.whole, memory_mb / MB_PER_CORE))
        for memory_mb in MEMORIES_MB
    )
    return Supply(functions, LAMBDA["x86"], machine, EC2[MACHINE].held(), START_S)


def _row(table: LatencyTable, cores: float) -> tuple[float, ...]:
    """What batches take on a number of cores up to two that need not be whole."""
    rows = []
    for batch in range(1, BATCHES + 1):
        one_s, two_s = table.at(1, batch), table.at(2, batch)
        assert one_s is not None, "the profile has one core"
        assert two_s is not None, "the profile has two cores"
        rows.append(one_s / cores if cores <= 1.0 else one_s * cores ** math.log2(two_s / one_s))
    return tuple(rows)
