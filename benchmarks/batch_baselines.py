"""BATCH beside vanilla Lambda, SageMaker's autoscaling and MArk: requests over the SLO and cost, on days of recorded demand.

    python -m benchmarks.batch_baselines [--quick] [--hours N] [--afresh] [--only TEXT]

All times are virtual: the same code gives the same figures on every computer. Three hours of each day take about ten minutes on
one core; --hours 23 takes the whole days, seven times as long. Results are kept in .cache/benchmarks until the code that decides
them changes, so that an interrupted run goes on where it was. --only takes the cases whose key holds a text, and writes no
result. `batch_baselines_minutes.csv` has each minute's rate, latencies and instances.

**Demand.** Hours of Twitter's day after its first hour, which is history; the same of the Azure functions' sum; and the bursty
MMPP(2) W14, drawn for two hours and one of history. Counts were recorded by the second and by the minute; requests are uniform
in their bin. What came before `begin_s` is history: BATCH plans its first hour from it, and the others begin in its last ten
minutes, with machines for its mean rate. Requests are judged from `begin_s` on.

**Supply.** ResNet50 as `profiles/` has it, measured on one and two cores. A function of m MB has c = m/1769 cores: below one core
a batch takes t(1)/c; between one and two t(1)·c^log₂(t(2)/t(1)), which is right at both. Memory ends at the 3,008 MB of the
paper's day. A machine is the share of a c5.4xlarge that has two cores, at an eighth of its price, which is also what c5.large
costs; a machine serves two minutes after the request for it. Machines run in the simulator, with the gateway's dispatcher and the
policies that serve live; functions are unlimited and begin at once, as in the paper.

**Objectives.** P95 within 800 ms, in which batches of eight have room, and within 150 ms, which is strict; under W14 P99, as in
the paper's Figure 16. A request that nobody answered has infinite latency.

| name | what it is |
| --- | --- |
| `batch` | the cheapest (memory, B, T) on Lambda, planned each hour from the hour before |
| `vanilla, largest`, `vanilla, cherry-picked` | a call for each request (`benchmarks/vanilla_lambda.py`) |
| `target-tracking` | machines under that policy, a request at a time, at the half load that AWS begins with |
| `target-tracking, tuned` | the cheapest of several targets that meets the objective, chosen afterwards; else the least late |
| `mark` | machines with batches under that policy, and calls of the cherry-picked memory for what overflows |
| `batch on machines` | the policy `batch` on machines |
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.buffer import PUBLISHED_BURSTY
from benchmarks.programs import ROOT, ended_well, pace_of, pace_parser, step
from benchmarks.report import Figure, ResultCache, write
from benchmarks.simulation.markov import markov_arrivals
from benchmarks.vanilla_lambda import cherry_picked, largest
from gnomon_core.errors import bad_request
from gnomon_core.lambda_pricing import MB_PER_CORE
from gnomon_core.profiles import LatencyTable, ModelProfile
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_planner.billing import EC2, LAMBDA, LambdaPrice, PerCall, ProvisionedPrice
from gnomon_planner.fit import fit
from gnomon_planner.maps import Map
from gnomon_planner.optimizer import Landscape
from gnomon_planner.plans import Plan, Size, Space
from gnomon_planner.samples import sample_of_counts, sample_of_times
from gnomon_planner.validation import replay_buffer
from gnomon_simulator.arrivals import from_trace
from gnomon_simulator.events import stream
from gnomon_simulator.profiles import Profile
from gnomon_simulator.results import OK, ON_DEMAND_INSTANCE, FunctionResult
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate
from gnomon_simulator.traces import read_trace

MINUTE_S = 60.0
RATIOS = tuple(number / 10.0 for number in range(31))
"""Multiples of the SLO, 0 to 3, at which the share of the requests that take longer is kept."""
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Minute:
    """One minute of arrivals. A latency is None where nothing arrived, or where too many requests were never answered."""

    rate_rps: float
    median_s: float | None
    p99_s: float | None
    instances: float


def minutes_of(arrived_s: Vector, latency_s: Vector, instances: Sequence[float]) -> tuple[Minute, ...]:
    """The minutes of the arrivals (from second 0), as many as there are `instances` for."""
    edges = np.searchsorted(arrived_s, [MINUTE_S * number for number in range(len(instances) + 1)])
    return tuple(
        Minute(
            _short((last - first) / MINUTE_S),
            _latency(latency_s[first:last], 50.0),
            _latency(latency_s[first:last], 99.0),
            _short(each),
        )
        for first, last, each in zip(edges, edges[1:], instances, strict=False)
    )


def minutes_in(arrived_s: Vector) -> int:
    """The number of minutes that hold all arrivals."""
    return int(arrived_s[-1] // MINUTE_S) + 1


def under_way(begun_s: Vector, taken_s: Vector, count: int) -> list[float]:
    """Calls at once in each minute, on average; a call counts in the minute in which it begins.

    Example: 120 calls of half a second that begin in one minute are 1 at once.
    """
    numbers = np.minimum((begun_s // MINUTE_S).astype(int), count - 1)
    busy: Vector = np.bincount(numbers, weights=taken_s, minlength=count)[:count] / MINUTE_S
    return [float(value) for value in busy]


def exceeding(latency_s: Vector, slo_s: float) -> tuple[float, ...]:
    """The share of the requests that take longer than each of `RATIOS` × the SLO."""
    ascending = np.sort(latency_s)
    above = len(ascending) - np.searchsorted(ascending, [ratio * slo_s for ratio in RATIOS], side="right")
    return tuple(float(value) for value in above / len(ascending))


def to_csv(runs: Iterable[tuple[str, str, Sequence[Minute]]]) -> str:
    """A line a minute of each case and name."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("case", "name", "minute", *(field.name for field in fields(Minute))))
    for case, name, minutes in runs:
        for number, minute in enumerate(minutes):
            lines.writerow((case, name, number, *asdict(minute).values()))
    return text.getvalue()


def from_csv(text: str) -> dict[tuple[str, str], list[Minute]]:
    """The minutes by case and name."""
    found: dict[tuple[str, str], list[Minute]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        values = (float(row[field.name]) if row[field.name] else None for field in fields(Minute))
        found.setdefault((row["case"], row["name"]), []).append(Minute(*values))  # type: ignore[arg-type]
    return found


def _latency(latency_s: Vector, percent: float) -> float | None:
    """The latency percentile by the nearest rank, as in the rows."""
    if not len(latency_s):
        return None
    found = float(np.sort(latency_s)[max(0, math.ceil(percent / 100.0 * len(latency_s) - 1e-9) - 1)])
    return None if found == math.inf else _short(found)


def _short(value: float) -> float:
    """Five digits: the file is to be read, and to be small."""
    return float(f"{value:.5g}")


HOUR_S = 3600.0
PER_MILLION = 1e6
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Demand:
    """Ascending arrivals in seconds; those before `begin_s` are history. With `bin_s` only counts in such bins were recorded."""

    times_s: Vector
    begin_s: float
    bin_s: float | None = None

    @property
    def judged_s(self) -> Vector:
        """The arrivals that count in the result, from second 0."""
        found: Vector = self.times_s[np.searchsorted(self.times_s, self.begin_s) :] - self.begin_s
        return found

    @property
    def known_rps(self) -> float:
        """The mean rate of the last hour of the history."""
        length_s = min(HOUR_S, self.begin_s)
        return len(self.between(self.begin_s - length_s, self.begin_s)) / length_s

    def between(self, since_s: float, until_s: float) -> Vector:
        """The arrivals of a stretch."""
        first, last = np.searchsorted(self.times_s, [since_s, until_s])
        found: Vector = self.times_s[first:last]
        return found


@dataclass(frozen=True, slots=True)
class Supply:
    """The supply: function calls of these sizes, and machines, which serve `start_s` after the order."""

    functions: tuple[Size, ...]
    price: LambdaPrice
    machine: Size
    machine_price: ProvisionedPrice
    start_s: float

    @property
    def usd_per_machine_s(self) -> float:
        """The price of one machine for one second, in USD."""
        return self.machine_price.per_second(self.machine.cores, self.machine.memory_mb)


@dataclass(frozen=True, slots=True)
class Objective:
    """P`percent` within `slo_s`."""

    slo_s: float
    percent: float

    def late(self, latency_s: Vector) -> float:
        """The share of the requests that were not in time."""
        return float((latency_s > self.slo_s * (1.0 + ROUNDING)).mean())


@dataclass(frozen=True, slots=True)
class Served:
    """The result of one policy.

    Each judged request's arrival and latency, infinite without an answer; dollars in all; and of each minute its instances.
    """

    name: str
    arrived_s: Vector
    latency_s: Vector
    instances: Sequence[float]
    usd: float
    batch: float
    machines: float
    on_demand: float
    said: str

    def row(self, objective: Objective) -> Row:
        """The figures."""
        ascending = np.sort(self.latency_s)
        return Row(
            self.name,
            len(ascending),
            objective.late(ascending),
            _percentile(ascending, objective.percent),
            _percentile(ascending, 50.0),
            self.usd / len(ascending) * PER_MILLION,
            self.batch,
            self.machines,
            self.on_demand,
            self.said,
            exceeding(self.latency_s, objective.slo_s),
            minutes_of(self.arrived_s, self.latency_s, self.instances),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One policy beside the others. `late` and `on_demand` are shares of the requests, `machines` and `batch` are means.

    `ccdf` is the share of the requests that take longer than each of `minutes.RATIOS` × the SLO.
    """

    name: str
    requests: int
    late: float
    percentile_s: float
    median_s: float
    usd_per_million: float
    batch: float
    machines: float
    on_demand: float
    said: str
    ccdf: tuple[float, ...]
    minutes: tuple[Minute, ...]

    def to_json(self) -> dict[str, Any]:
        """The row as a document; a latency without end is None."""
        return {key: None if value == math.inf else value for key, value in asdict(self).items()}

    @staticmethod
    def from_json(document: dict[str, Any]) -> Row:
        """The row, from its `to_json`."""
        values: dict[str, Any] = {key: math.inf if value is None else value for key, value in document.items()}
        minutes = tuple(Minute(**minute) for minute in document["minutes"])
        return Row(**{**values, "ccdf": tuple(document["ccdf"]), "minutes": minutes})


def _percentile(ascending: Vector, percent: float) -> float:
    """The percentile by the nearest rank, so that infinite latencies are allowed."""
    return float(ascending[max(0, math.ceil(percent / 100.0 * len(ascending) - ROUNDING) - 1)])


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
        """The case's name in results."""
        return f"{self.demand}, {self.hours:g} h, P{self.objective.percent:g} ≤ {self.objective.slo_s * 1e3:g} ms"


def cases(*, quick: bool, hours: float = HOURS) -> list[Case]:
    """The cases for this number of hours; --quick is a quarter of an hour of two arrival processes."""
    loose, strict, bursty = Objective(0.8, 95.0), Objective(0.15, 95.0), Objective(0.8, 99.0)
    if quick:
        return [Case("Twitter", 0.25, loose), Case(BURSTY, 0.25, bursty)]
    days = [Case(name, min(hours, longest), objective) for name, longest in LONGEST.items() for objective in (loose, strict)]
    return [*days, Case(BURSTY, min(hours, BURSTY_HOURS), bursty)]


def demand_of(case: Case) -> Demand:
    """The arrivals of a case, with an hour of history before them."""
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
    """Sizes and prices of the case."""
    model = ModelProfile.from_json(json.loads(profile.read_text(encoding="utf-8")))
    machine = Size(f"a share of {MACHINE} with {MACHINE_CORES} cores", MACHINE_MB, MACHINE_CORES, _row(model.whole, 2.0))
    functions = tuple(
        Size(f"{memory_mb} MB", memory_mb, memory_mb / MB_PER_CORE, _row(model.whole, memory_mb / MB_PER_CORE))
        for memory_mb in MEMORIES_MB
    )
    return Supply(functions, LAMBDA["x86"], machine, EC2[MACHINE].provisioned(), START_S)


def _row(table: LatencyTable, cores: float) -> tuple[float, ...]:
    """Batch latencies for a number of cores up to two, which need not be whole."""
    rows = []
    for batch in range(1, BATCHES + 1):
        one_s, two_s = table.at(1, batch), table.at(2, batch)
        assert one_s is not None, "the profile has one core"
        assert two_s is not None, "the profile has two cores"
        rows.append(one_s / cores if cores <= 1.0 else one_s * cores ** math.log2(two_s / one_s))
    return tuple(rows)


TIMEOUTS = 49
TARGETS = (0.5, 0.65, 0.8)
"""Shares of what a machine sustains that `target-tracking, tuned` chooses from."""
LONGEST_WAIT_S = 60.0
"""After this, a machine's request is given up, as SageMaker does."""
MOST_MACHINES = 500
LEAD_S = 600.0
"""So much of the history is simulated too, so that nobody is judged by how it begins."""
SHOWN_PLANS = 3


def side_by_side(demand: Demand, supply: Supply, objective: Objective, names: Sequence[str] = ()) -> list[Row]:
    """The rows of those named, of all where none is."""
    return [served(name, demand, supply, objective).row(objective) for name in names or NAMES]


def served(name: str, demand: Demand, supply: Supply, objective: Objective) -> Served:
    """The result of one of `NAMES` for these arrivals.

    Raises:
        GnomonError: 400 `bad_demand` for a demand without history or without requests; 400 `unknown_baseline`.

    """
    if not (demand.begin_s > 0.0 and len(demand.judged_s) and len(demand.judged_s) < len(demand.times_s)):
        raise bad_request("bad_demand", "The demand has no history, or nothing after it.", "Let begin_s lie between arrivals.")
    if name not in _KINDS:
        raise bad_request("unknown_baseline", f"{name[:100]!r} is no baseline.", f"Known ones: {', '.join(NAMES)}.")
    return _KINDS[name](name, demand, supply, objective)


def _batch(name: str, demand: Demand, supply: Supply, objective: Objective) -> Served:
    latencies, begun, taken, usd, said = [], [], [], 0.0, []
    for since_s in np.arange(demand.begin_s, demand.times_s[-1] + 1e-9, HOUR_S):
        times = demand.between(since_s, since_s + HOUR_S)
        plan = _plan(demand, since_s, supply, objective)
        seconds = np.array(plan.size.service_s[: plan.buffer.batch])
        sent = replay_buffer(times, plan.buffer.batch, plan.buffer.timeout_s)
        latencies.append(sent.latency_s(seconds))
        sizes = sent.sizes[sent.first]
        usd += float(supply.price.per_call(plan.size.memory_mb, seconds)[sizes - 1].sum())
        begun.append((times + sent.wait_s)[sent.first] - demand.begin_s)
        taken.append(seconds[sizes - 1])
        said.append(str(plan))
    latency_s = np.concatenate(latencies)
    more = f"; {len(said)} in all" if len(said) > SHOWN_PLANS else ""
    plans = "; ".join(dict.fromkeys(said[:SHOWN_PLANS])) + more
    arrived_s, calls = demand.judged_s, np.concatenate(begun)
    instances = under_way(calls, np.concatenate(taken), minutes_in(arrived_s))
    return Served(name, arrived_s, latency_s, instances, usd, len(latency_s) / max(len(calls), 1), 0.0, 1.0, plans)


def _plan(demand: Demand, now_s: float, supply: Supply, objective: Objective) -> Plan:
    """The cheapest plan within the objective for the arrivals of the hour before; the quickest where there is none."""
    since_s = max(0.0, now_s - HOUR_S)
    before = demand.between(since_s, now_s)
    if demand.bin_s is None:
        sample = sample_of_times(before)
    else:
        edges = np.linspace(since_s, now_s, round((now_s - since_s) / demand.bin_s) + 1)
        sample = sample_of_counts(np.histogram(before, edges)[0].astype(float), demand.bin_s)
    batches = tuple(range(1, min(len(size.service_s) for size in supply.functions) + 1))
    timeouts_s = tuple(objective.slo_s * step / TIMEOUTS for step in range(1, TIMEOUTS + 1))
    space = Space(supply.functions, batches, timeouts_s)
    return Landscape(fit(sample).process, space, PerCall(supply.price), objective.percent).cheapest(objective.slo_s).plan


def _largest(name: str, demand: Demand, supply: Supply, objective: Objective) -> Served:
    return _alone(name, demand, largest(supply.functions, supply.price, objective.percent))


def _cherry_picked(name: str, demand: Demand, supply: Supply, objective: Objective) -> Served:
    return _alone(name, demand, cherry_picked(supply.functions, supply.price, objective.percent, objective.slo_s).plan)


def _alone(name: str, demand: Demand, plan: Plan) -> Served:
    arrived_s = demand.judged_s
    latency_s = np.full(len(arrived_s), plan.latency_s)
    instances = under_way(arrived_s, latency_s, minutes_in(arrived_s))
    return Served(name, arrived_s, latency_s, instances, len(arrived_s) * plan.usd_per_request, 1.0, 0.0, 1.0, plan.size.name)


def _target_tracking(name: str, demand: Demand, supply: Supply, objective: Objective, share: float = TARGETS[0]) -> Served:
    """SageMaker's autoscaling; its first machines are those that the history's mean rate deserves."""
    target_rps = share / supply.machine.service_s[0]
    settings = _settings("target-tracking", objective, 1, target_rps=target_rps)
    warm = max(1, math.ceil(demand.known_rps / target_rps))
    found = _on_machines(name, demand, supply, settings, warm=warm)
    return replace(found, said=f"target {60.0 * target_rps:.0f} a minute ({share:.0%} of what one sustains); {found.said}")


def _tuned(name: str, demand: Demand, supply: Supply, objective: Objective) -> Served:
    tried = [_target_tracking(name, demand, supply, objective, share) for share in TARGETS]
    late = [objective.late(run.latency_s) for run in tried]
    within = [plan for plan, share in zip(tried, late, strict=True) if share <= 1.0 - objective.percent / 100.0]
    return min(within, key=lambda plan: plan.usd) if within else tried[late.index(min(late))]


def _mark(name: str, demand: Demand, supply: Supply, objective: Objective) -> Served:
    """Machines for a predicted rate; what overflows is called one by one at the cherry-picked memory."""
    function = cherry_picked(supply.functions, supply.price, objective.percent, objective.slo_s).plan
    settings = _settings("mark", objective, len(supply.machine.service_s))
    each_rps = max(
        batch / seconds for batch, seconds in enumerate(supply.machine.service_s, start=1) if seconds <= objective.slo_s
    )
    warm = max(1, math.ceil(demand.known_rps / (settings.alpha * each_rps)))
    return _on_machines(name, demand, supply, settings, warm=warm, function=function)


def _batch_on_machines(name: str, demand: Demand, supply: Supply, objective: Objective) -> Served:
    settings = _settings("batch", objective, len(supply.machine.service_s))
    warm = max(1, math.ceil(demand.known_rps * supply.machine.service_s[0]))
    return _on_machines(name, demand, supply, settings, warm=warm)


def _settings(policy: str, objective: Objective, max_batch: int, target_rps: float | None = None) -> Settings:
    return Settings(
        autoscaler=policy, slo_s=objective.slo_s, slo_percentile=objective.percent, deadline_s=LONGEST_WAIT_S,
        max_batch=max_batch, queue_max_requests=10**6, target_rps=target_rps, scale=ScaleSettings(min=1, max=MOST_MACHINES),
    )  # fmt: skip


def _on_machines(
    name: str, demand: Demand, supply: Supply, settings: Settings, *, warm: int, function: Plan | None = None
) -> Served:
    """Simulated from the last `LEAD_S` of the history, with as many machines as are `warm`; counted where it is judged."""
    lead_s = min(LEAD_S, demand.begin_s)
    arrivals = demand.between(demand.begin_s - lead_s, math.inf) - (demand.begin_s - lead_s)
    table = LatencyTable({1: dict(enumerate(supply.machine.service_s, start=1))})
    profile = Profile(supply.machine.name, table, supply.start_s)
    called_s = None if function is None else function.latency_s
    plan = FunctionPlan(name, settings, profile, arrivals.tolist(), "given", warm=warm, on_demand_s=called_s)
    # An instance is a machine: the simulated cluster has a core for each.
    result = simulate([plan], [NodePlan("cloud", MOST_MACHINES * 2)])[name]
    judged = slice(int(np.searchsorted(arrivals, lead_s)), None)
    until_s = float(arrivals[-1])
    machine_s = result.instance_s_between(lead_s, until_s)
    called = _called(result)[judged]
    usd = machine_s * supply.usd_per_machine_s + called.sum() * (0.0 if function is None else function.usd_per_request)
    batches = np.array(result.requests.batch)[judged]
    executed = batches[batches > 0]
    said = f"{result.fewest_instances} to {result.most_instances} of {supply.machine.name}"
    if function is not None:
        said += f"; {called.sum()} calls at {function.size.name}"
    arrived_s = arrivals[judged] - lead_s
    begins_s = [lead_s + MINUTE_S * number for number in range(minutes_in(arrived_s))]
    return Served(
        name,
        arrived_s,
        _latency_s(result)[judged],
        [result.instance_s_between(begin_s, begin_s + MINUTE_S) / MINUTE_S for begin_s in begins_s],
        float(usd),
        len(executed) / max(float((1.0 / executed).sum()), 1.0),
        machine_s / (until_s - lead_s),
        float(called.mean()),
        said,
    )


def _latency_s(result: FunctionResult) -> Vector:
    rows = result.requests
    taken: Vector = np.array(rows.finished_s) - np.array(rows.arrived_s)
    found: Vector = np.where(np.array(rows.status) == OK, taken, math.inf)
    return found


def _called(result: FunctionResult) -> npt.NDArray[np.bool_]:
    """The mask of the requests that on-demand functions served."""
    rows = result.requests
    number = rows.instances.index(ON_DEMAND_INSTANCE) if ON_DEMAND_INSTANCE in rows.instances else None
    found: npt.NDArray[np.bool_] = np.array(rows.instance) == number if number is not None else np.zeros(len(rows), dtype=bool)
    return found


_KINDS: Mapping[str, Callable[[str, Demand, Supply, Objective], Served]] = {
    "batch": _batch,
    "vanilla, largest": _largest,
    "vanilla, cherry-picked": _cherry_picked,
    "target-tracking": _target_tracking,
    "target-tracking, tuned": _tuned,
    "mark": _mark,
    "batch on machines": _batch_on_machines,
}
NAMES = tuple(_KINDS)


MINUTES = "batch_baselines_minutes.csv"
SOURCES = (
    "autoscaler/gnomon_autoscaler/policies",
    "autoscaler/gnomon_autoscaler/runner.py",
    "gateway-plugin/gnomon_gateway/dispatch",
    "gateway-plugin/gnomon_gateway/scheduling",
    "planner",
    "simulator/gnomon_simulator/results.py",
    "simulator/gnomon_simulator/simulation.py",
    "simulator/gnomon_simulator/simulated_platform.py",
    "benchmarks/batch_baselines.py",
    "benchmarks/vanilla_lambda.py",
)


def rows_of(case: Case, kept: ResultCache) -> list[Row]:
    """Everybody's row, from what was kept as far as it is there."""
    found = []
    for name in NAMES:
        key = f"{case.key}: {name}"
        document = kept.get(key)
        if document is None:
            document = served(name, demand_of(case), supply(), case.objective).row(case.objective).to_json()
            kept.keep(key, document)
        row = Row.from_json(document)
        step(f"{key}: {described(row, case)}")
        found.append(row)
    return found


def described(row: Row, case: Case) -> str:
    """A row for a reader."""
    return (
        f"{row.late:.3%} late, P{case.objective.percent:g} {row.percentile_s * 1e3:.1f} ms, "
        f"${row.usd_per_million:.3f} a million, {_shape(row)}; {row.said}"
    )


def figures_of(case: Case, rows: Sequence[Row]) -> Iterator[Figure]:
    """The figures of each policy: requests over the SLO, the percentile and the cost, beside BATCH's."""
    batch = rows[0]
    for row in rows:
        key, others = (
            f"{case.key}: {row.name}",
            "" if row is batch else f"; {row.usd_per_million / batch.usd_per_million:.3g} × batch's",
        )
        percentile_ms = row.percentile_s * 1e3 if row.percentile_s < math.inf else -1.0
        yield Figure(f"{key}: late", 100.0 * row.late, "% of requests", detail=f"of {row.requests}; {row.said}")
        yield Figure(
            f"{key}: P{case.objective.percent:g}", percentile_ms, "ms", detail="-1 is no answer" if percentile_ms < 0.0 else ""
        )
        yield Figure(f"{key}: cost", row.usd_per_million, "$ per million requests", detail=f"{_shape(row)}{others}")


def _shape(row: Row) -> str:
    return f"mean batch {row.batch:.2f}, {row.machines:.2f} machines, {row.on_demand:.1%} called"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--hours", type=float, default=HOURS, metavar="N", help="of each demand, as far as it has them")
    parser.add_argument("--afresh", action="store_true", help="do again what an interrupted run has kept")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases whose key holds it")
    options = parser.parse_args(arguments)
    pace = pace_of(options)
    kept = ResultCache("batch_baselines", SOURCES)
    if options.afresh:
        kept.forget()
    figures: list[Figure] = []
    documents: list[dict[str, Any]] = []
    over_time: list[tuple[str, str, Sequence[Minute]]] = []
    for case in cases(quick=pace.quick, hours=options.hours):
        if options.only in case.key:
            rows = rows_of(case, kept)
            figures += figures_of(case, rows)
            documents.append({"case": case.key, "rows": [replace(row, minutes=()).to_json() for row in rows]})
            over_time += [(case.key, row.name, row.minutes) for row in rows]
    if not options.only:
        pace.results.mkdir(parents=True, exist_ok=True)
        (pace.results / MINUTES).write_text(to_csv(over_time), encoding="utf-8")
        write("batch_baselines", figures, repeats=1, packages=("gnomon", "numpy"), folder=pace.results, more={"cases": documents})


if __name__ == "__main__":
    ended_well(main)
