"""BATCH's Twitter day: does the policy `batch` meet its percentile, and what does it cost beside the cheapest plan of each hour?

    python -m benchmarks.twitter_day [--quick] [--afresh] [--only TEXT]

22 full hours, each with a history before it; three objectives on Lambda and three with held instances (`cases`). For each case:
the policy's day, planned anew hourly and on change; the same planned hourly only (`days`); and the cheapest fixed plan of every
hour in hindsight. All times are virtual; the same seed gives the same figures on every machine.

A run takes about an hour on one core. Results are kept in .cache/benchmarks until the code that decides them changes, so that an
interrupted run goes on where it was. --quick does two hours of two cases; --only takes the cases whose key holds a text, and
writes no result.

**Arrivals.** The trace has counts of 100 ms; requests are uniform within their bin, from a seed. The policy sees counts per
second.

**Lambda.** Each call pays for its milliseconds of 1,769 MB and a fee (`gnomon_planner.billing`); instances are unlimited. A batch
of k takes 28 + 12k ms, decision 20's example.

**Held.** Instances of one core are paid for as long as they are held; a batch of k takes 150 + 50k ms, decision 22's example. The
number of instances is the 99.9 % quantile of concurrent batches, a whole number: where there are six, one more is 17 %.

**The day** is decided by the policy that functions name, asked once a second as it is live; an instance serves `START_S` after
the request for it. Every request goes through the buffer whose (B, T) changes with the policy's plans and, where instances are
held, through as many instances as there were.

**Hindsight.** B is every batch up to the largest, T goes up to twice the SLO in steps of 1/200 of the SLO, 1/50 where instances
are held. Each candidate runs event by event on the hour's own requests; the cheapest one whose percentile is within the SLO wins.
All 10,000 combinations would take minutes an hour. For one B a longer T makes batches larger and requests later: cost falls and
the percentile rises, but for the luck of single batches. So the longest T that holds is bisected for each B, its neighbours
within `NEAR` steps run too, and a B whose full batches alone cost more than the best plan so far is passed over. A test runs all
of a smaller space and finds the same plan.

**Goals.** The percentile is met in 21 of 22 hours, at a cost within 10 % of the cheapest plan of the same hour. A case batches if
the cheapest plan has B ≥ 4 in half of the hours.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.programs import ended_well, pace_of, pace_parser, step
from benchmarks.report import Figure, ResultCache, table, write
from gnomon_autoscaler.policies.batch.policy import Batch
from gnomon_autoscaler.registry import BUILT_IN
from gnomon_autoscaler.runner import state_from_json, state_to_json
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.interfaces import ScalingPolicy
from gnomon_core.json_types import JsonObject
from gnomon_core.scaling import History, Observation, PolicyState, SetBufferPlan
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_planner.billing import FARGATE, LAMBDA
from gnomon_planner.numerics import Indices, Vector
from gnomon_planner.validation import BufferChange, concurrency_quantile, instance_waits, replay_buffer, replay_changing_buffer
from gnomon_simulator.arrivals import from_trace
from gnomon_simulator.events import stream
from gnomon_simulator.traces import Trace, read_trace

TRACE = Path(__file__).parent / "traces" / "twitter_may25_100ms.csv.gz"
HOUR_S = 3600.0
HOURS = range(1, 23)
"""The full hours that have one before them."""
SEED = 1
LOOK_S = 1.0
MEMORY_MB = 1769
INSTANCE_MB = 512
PERCENT = 95.0
ROUNDING = 1e-9
"""Seconds: a request that is in time but for the last digit of a sum is in time."""


@dataclass(frozen=True, slots=True)
class Case:
    """A batch of k takes `fixed_ms` + k·`each_ms`; P95 is to be within `slo_ms`."""

    paid: str
    fixed_ms: float
    each_ms: float
    slo_ms: float
    max_batch: int

    @property
    def key(self) -> str:
        """The case's name in results."""
        return f"{self.paid}, {self.fixed_ms:g} + {self.each_ms:g}·k ms, {self.slo_ms:g} ms"

    @property
    def service_s(self) -> Vector:
        """S_k."""
        return (self.fixed_ms + self.each_ms * np.arange(1.0, self.max_batch + 1.0)) / 1e3

    @property
    def slo_s(self) -> float:
        """The objective."""
        return self.slo_ms / 1e3

    @property
    def held(self) -> bool:
        """True if instances are paid for, and not calls."""
        return self.paid == "held"

    @property
    def settings(self) -> Settings:
        """The settings of a function as a user would deploy it."""
        return Settings(
            autoscaler="batch", slo_s=self.slo_s, slo_percentile=PERCENT, max_batch=self.max_batch,
            memory_mb=None if self.held else MEMORY_MB, scale=ScaleSettings(min=1, max=200),
        )  # fmt: skip

    def within(self, latency_s: Vector) -> float:
        """The share of these requests that are in time."""
        return float((latency_s <= self.slo_s + ROUNDING).mean())

    def usd_of_calls(self, sizes: npt.NDArray[np.intp]) -> Vector:
        """The price of each batch of these sizes, in USD."""
        return LAMBDA["x86"].per_call(MEMORY_MB, self.service_s)[sizes - 1]

    @property
    def usd_per_instance_s(self) -> float:
        """The price of one instance for one second, in USD."""
        return FARGATE.per_second(1.0, INSTANCE_MB)


CASES = (
    *(Case("Lambda", 28.0, 12.0, slo_ms, 32) for slo_ms in (200.0, 300.0, 500.0)),
    *(Case("held", 150.0, 50.0, slo_ms, 16) for slo_ms in (500.0, 700.0, 1000.0)),
)


def is_met(within: float) -> bool:
    """Return whether the percentile is within the SLO if this share of the requests is."""
    return within >= PERCENT / 100.0


@cache
def _trace() -> Trace:
    return read_trace(TRACE)


@cache
def arrivals() -> Vector:
    """Arrival times of the day's requests, in seconds."""
    return np.array(from_trace(_trace(), stream(SEED, "arrivals")))


@cache
def counted() -> tuple[float, ...]:
    """The arrivals in each bin, which is as long as the autoscaler's period."""
    trace = _trace()
    each = round(LOOK_S / trace.bin_s)
    whole = len(trace.counts) // each * each
    return tuple(np.array(trace.counts[:whole]).reshape(-1, each).sum(axis=1).tolist())


def of_hour(hour: int) -> Vector:
    """The arrivals of one hour."""
    times = arrivals()
    first, last = np.searchsorted(times, [hour * HOUR_S, (hour + 1) * HOUR_S])
    return times[first:last]


START_S = 1.0
KEEP = 60
FUNCTION = "f.openfaas-fn"
MODES: dict[str, Callable[[Settings], ScalingPolicy]] = {
    "on change": BUILT_IN["batch"].make,
    "hourly": lambda settings: Batch("batch", settings, rule=None),
}


@dataclass(frozen=True, slots=True)
class Followed:
    """The policy's hour: bounds (since, B, T), instances paid for at each sample, times of planning, and the policy's state."""

    bounds: Sequence[tuple[float, int, float]]
    paid: Sequence[int]
    planned_s: Sequence[float]
    state: JsonObject


@dataclass(frozen=True, slots=True)
class Hour:
    """One hour of a day: the share of requests within the SLO, the percentile, and the price of a request."""

    hour: int
    requests: int
    within: float
    percentile_s: float
    usd_per_request: float
    plans: int
    mean_batch: float
    instances: float

    @property
    def met(self) -> bool:
        """True if the percentile is within the SLO."""
        return is_met(self.within)


def followed(case: Case, mode: str, hour: int, before: Followed | None) -> Followed:
    """The policy's next hour; its first one where there is none `before`."""
    policy, looks, latency_s = MODES[mode](case.settings), counted(), tuple(case.service_s.tolist())
    state = PolicyState() if before is None else state_from_json(before.state, 0.0)
    bounds: list[tuple[float, int, float]] = [] if before is not None else [(-math.inf, case.max_batch, 0.0)]
    planned_s, paid = [], [1 if before is None else before.paid[-1]]
    first, last = round(hour * HOUR_S / LOOK_S), round((hour + 1) * HOUR_S / LOOK_S)
    for number in range(first + 1, last + 1):
        now_s = number * LOOK_S
        history = History(LOOK_S, now_s, looks[max(0, number - KEEP) : number])
        seen = Observation(
            now_s, FUNCTION, case.settings, _instances(paid[-1]), (), queued=0, executing=0, oldest_wait_s=0.0,
            last_request_s=now_s, history=history, latency_s=latency_s,
        )  # fmt: skip
        decision, state = policy.decide(seen, state)
        buffers = [action for action in decision.actions if isinstance(action, SetBufferPlan)]
        bounds += [(now_s, each.max_batch, each.max_wait_s) for each in buffers]
        paid.append(decision.desired or 1)
        plan = state.values.get("plan")
        if isinstance(plan, Mapping) and plan["planned_at_s"] == now_s:
            planned_s.append(now_s)
    return Followed(bounds, paid[1:], planned_s, state_to_json(state))


def _ready(paid: Sequence[int]) -> Iterator[tuple[float, int]]:
    """The instances that serve, by time: those paid for both now and `START_S` ago; `paid` begins with second 0."""
    late = round(START_S / LOOK_S)
    last = 0
    for number, count in enumerate(paid):
        serving = min(count, paid[max(0, number - late)])
        if serving != last:
            yield number * LOOK_S, serving
        last = serving


@cache
def _instances(count: int) -> tuple[Instance, ...]:
    made = (f"i-{number}" for number in range(count))
    return tuple(
        Instance(name, FUNCTION, 1, "node-1", 1, INSTANCE_MB * 2**20, InstanceState.READY, started_s=0.0) for name in made
    )


def results_by_hour(case: Case, parts: Sequence[Followed], judged: Sequence[int]) -> list[Hour]:
    """Replay the requests of these hours, with the policy's plans from the first hour of the day on."""
    times = arrivals()[: int(np.searchsorted(arrivals(), len(parts) * HOUR_S))]
    run = replay_changing_buffer(times, [BufferChange(*each) for part in parts for each in part.bounds])
    opened_s, sizes = times[run.first], run.sizes[run.first]
    latency_s = run.latency_s(case.service_s)
    paid = [1, *(count for part in parts for count in part.paid)]
    if case.held:
        sent_s = opened_s + run.wait_s[run.first]
        waits = instance_waits(sent_s, case.service_s[sizes - 1], tuple(_ready(paid)))
        latency_s = latency_s + np.repeat(waits, sizes)
    plans = [len(part.planned_s) for part in parts]
    held = np.mean(np.reshape(paid[:-1], (len(parts), -1)), axis=1).tolist()
    return [_judged(case, (hour, plans[hour], held[hour]), (times, latency_s), (opened_s, sizes)) for hour in judged]


def _judged(case: Case, said: tuple[int, int, float], requests: tuple[Vector, Vector], batches: tuple[Vector, Indices]) -> Hour:
    """An hour in which so many plans were made and so many instances held on average."""
    hour, plans, held = said
    begin_s, end_s = hour * HOUR_S, (hour + 1) * HOUR_S
    times, latency_s = requests
    opened_s, sizes = batches
    mine = latency_s[slice(*np.searchsorted(times, [begin_s, end_s]))]
    sizes = sizes[slice(*np.searchsorted(opened_s, [begin_s, end_s]))]
    usd = held * HOUR_S * case.usd_per_instance_s if case.held else float(case.usd_of_calls(sizes).sum())
    percentile_s = float(np.quantile(mine, PERCENT / 100.0, method="inverted_cdf"))
    return Hour(hour, len(mine), case.within(mine), percentile_s, usd / len(mine), plans, float(sizes.mean()), held)


STEPS = {"Lambda": 200, "held": 50}
REACH = 2
NEAR = 2


@dataclass(frozen=True, slots=True)
class Cheapest:
    """A plan for an hour and what came of it; `met` is False where no plan holds, then it is the one with the most within."""

    batch: int
    timeout_s: float
    instances: int
    within: float
    usd_per_request: float
    mean_batch: float

    @property
    def met(self) -> bool:
        """True if the percentile is within the SLO."""
        return is_met(self.within)


def ran(case: Case, times: Vector, batch: int, timeout_s: float) -> Cheapest:
    """Replay these arrivals under one plan."""
    run = replay_buffer(times, batch, timeout_s)
    sizes = run.sizes[run.first]
    latency_s, instances = run.latency_s(case.service_s), 0
    if case.held:
        begin_s = float(np.floor(times[0] / HOUR_S) * HOUR_S)
        sent_s, service_s = times[run.first] + run.wait_s[run.first], case.service_s[sizes - 1]
        instances = concurrency_quantile(sent_s, service_s, (begin_s, begin_s + HOUR_S))
        latency_s = latency_s + np.repeat(instance_waits(sent_s, service_s, ((begin_s, instances),)), sizes)
    usd = instances * HOUR_S * case.usd_per_instance_s if case.held else float(case.usd_of_calls(sizes).sum())
    return Cheapest(batch, timeout_s, instances, case.within(latency_s), usd / len(times), float(sizes.mean()))


def cheapest(case: Case, times: Vector) -> Cheapest:
    """The cheapest plan of all, by as few runs as it takes."""
    timeouts_s = timeouts_of(case)
    best: Cheapest | None = None
    for batch in sorted(range(1, case.max_batch + 1), key=lambda batch: _least_usd(case, times, batch)):
        if best is not None and best.met and _least_usd(case, times, batch) >= best.usd_per_request:
            continue
        for found in _front(case, times, batch, timeouts_s):
            if best is None or _better(found, best):
                best = found
    assert best is not None
    return best


def every(case: Case, times: Vector, batches: Sequence[int], timeouts_s: Sequence[float]) -> Cheapest:
    """The cheapest of so many, each of which is run."""
    runs = [ran(case, times, batch, timeout_s) for batch in batches for timeout_s in timeouts_s]
    best = runs[0]
    for found in runs[1:]:
        best = found if _better(found, best) else best
    return best


def timeouts_of(case: Case) -> tuple[float, ...]:
    """T, from none to twice the SLO."""
    steps = STEPS[case.paid]
    return tuple(case.slo_s * step / steps for step in range(REACH * steps + 1))


def _front(case: Case, times: Vector, batch: int, timeouts_s: Sequence[float]) -> list[Cheapest]:
    """The runs around the longest timeout that holds."""

    @cache
    def at(step: int) -> Cheapest:
        return ran(case, times, batch, timeouts_s[step])

    if batch == 1:
        return [at(0)]
    last = _longest(lambda step: at(step).met, len(timeouts_s))
    return [at(step) for step in range(max(0, last - NEAR), min(len(timeouts_s), last + NEAR + 1))]


def _longest(holds: Callable[[int], bool], count: int) -> int:
    """The last step that holds, if all before it do; 0 where none does."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _least_usd(case: Case, times: Vector, batch: int) -> float:
    """A lower bound of the price of a request in USD: all batches have the cheapest size up to `batch`."""
    sizes = np.arange(1, batch + 1)
    if case.held:
        busy_s = len(times) * float((case.service_s[:batch] / sizes).min())
        return float(np.ceil(busy_s / HOUR_S - ROUNDING)) * HOUR_S * case.usd_per_instance_s / len(times)
    return float((case.usd_of_calls(sizes) / sizes).min())


def _better(first: Cheapest, second: Cheapest) -> bool:
    if first.met != second.met:
        return first.met
    if not first.met:
        return first.within > second.within
    return first.usd_per_request < second.usd_per_request


HOURS_GOAL, COST_GOAL, BATCH_GOAL, BATCH_SHARE = 21, 1.1, 4, 0.5
VERDICTS_OF = ("on_change", "hourly")
PER_MILLION = 1e6
Row = Mapping[str, Any]


def document_of(case: Case, runs: Mapping[str, Sequence[Row]], cheapest: Sequence[Row]) -> dict[str, Any]:
    """A case: milliseconds and dollars per million requests, an entry for each hour."""
    first = next(iter(runs.values()))
    hours = [
        {
            "hour": first[place]["hour"],
            "requests": first[place]["requests"],
            **{mode.replace(" ", "_"): _as_run(run[place], plan) for mode, run in runs.items()},
            "cheapest": _as_planned(plan),
        }
        for place, plan in enumerate(cheapest)
    ]
    return {
        "key": case.key,
        "paid": case.paid,
        "service_ms": [round(1e3 * value, 6) for value in case.service_s.tolist()],
        "slo_ms": case.slo_ms,
        "percent": PERCENT,
        "max_batch": case.max_batch,
        "seed": SEED,
        "hours": hours,
    }


def _as_run(run: Row, plan: Row) -> dict[str, Any]:
    return {
        "met": is_met(run["within"]),
        "within_slo": run["within"],
        "percentile_ms": run["percentile_s"] * 1e3,
        "usd_per_million": run["usd_per_request"] * PER_MILLION,
        "cost_of_cheapest": run["usd_per_request"] / plan["usd_per_request"],
        "plans": run["plans"],
        "mean_batch": run["mean_batch"],
        "mean_instances": run["instances"],
    }


def _as_planned(plan: Row) -> dict[str, Any]:
    return {
        "met": is_met(plan["within"]),
        "batch": plan["batch"],
        "timeout_ms": plan["timeout_s"] * 1e3,
        "instances": plan["instances"] or None,
        "within_slo": plan["within"],
        "usd_per_million": plan["usd_per_request"] * PER_MILLION,
        "mean_batch": plan["mean_batch"],
    }


def figures_of(document: Row) -> Iterator[Figure]:
    """Hours met and cost, on change and, without a goal, hourly; and whether the case is one that batches."""
    hours, key = document["hours"], document["key"]
    for mode in VERDICTS_OF:
        yield _hours_met(f"{key}: {mode}: hours met", hours, mode)
        yield _cost(f"{key}: {mode}: cost", hours, mode)
    batches = [hour["cheapest"]["batch"] for hour in hours]
    share = sum(batch >= BATCH_GOAL for batch in batches) / len(batches)
    said = f"of hours whose cheapest plan has B >= {BATCH_GOAL}: B = {min(batches)} to {max(batches)}"
    verdict = "met" if share >= BATCH_SHARE else "missed"
    yield Figure(f"{key}: batches", share, "", BATCH_SHARE, ">=", verdict, said)


def _hours_met(key: str, hours: Sequence[Row], mode: str) -> Figure:
    met = sum(hour[mode]["met"] for hour in hours)
    missed = [f"hour {hour['hour']}: {hour[mode]['within_slo']:.2%} within" for hour in hours if not hour[mode]["met"]]
    plans = statistics.fmean(hour[mode]["plans"] for hour in hours)
    said = f"of {len(hours)}; {'; '.join(missed) or 'every hour'}; {plans:.1f} plans an hour"
    if mode != VERDICTS_OF[0]:
        return Figure(key, met, "hours", detail=said)
    goal = HOURS_GOAL * len(hours) / len(HOURS)
    return Figure(key, met, "hours", goal, ">=", "met" if met >= goal else "missed", said)


def _cost(key: str, hours: Sequence[Row], mode: str) -> Figure:
    costs = [hour[mode]["cost_of_cheapest"] for hour in hours]
    mean = statistics.fmean(costs)
    above = [f"hour {hour['hour']}: {hour[mode]['cost_of_cheapest']:.3f}" for hour in hours]
    above = [said for said, cost in zip(above, costs, strict=True) if cost > COST_GOAL]
    within = len(costs) - len(above)
    said = f"of the cheapest plan's, mean; {min(costs):.3f} to {max(costs):.3f} an hour, {within} of {len(costs)} within 10 %"
    said = "; ".join([said, *above])
    if mode != VERDICTS_OF[0]:
        return Figure(key, mean, "×", detail=said)
    return Figure(key, mean, "×", COST_GOAL, "<=", "met" if mean <= COST_GOAL else "missed", said)


BUFFER = ("planner/gnomon_planner/validation.py", "planner/gnomon_planner/billing.py")
DAY_SOURCES = (*BUFFER, "planner", "autoscaler/gnomon_autoscaler/policies/batch", "benchmarks/twitter_day.py")
HINDSIGHT_SOURCES = (*BUFFER, "benchmarks/twitter_day.py")


def day_of(case: Case, mode: str, hours: Sequence[int], kept: ResultCache) -> list[dict[str, Any]]:
    """The policy's day, from what was kept as far as it is there."""
    parts: list[Followed] = []
    for hour in range(hours[-1] + 1):
        key = f"{case.key}, {mode}, hour {hour}"
        found = kept.get(key)
        if found is None:
            found = asdict(followed(case, mode, hour, parts[-1] if parts else None))
            kept.keep(key, found)
            step(f"{key}: {len(found['planned_s'])} plans")
        parts.append(Followed(**found))
    return [asdict(each) for each in results_by_hour(case, parts, hours)]


def cheapest_of(case: Case, hours: Sequence[int], kept: ResultCache) -> list[dict[str, Any]]:
    """The cheapest plan of each hour, from what was kept as far as it is there."""
    found = []
    for hour in hours:
        key = f"{case.key}, hour {hour}"
        plan = kept.get(key)
        if plan is None:
            step(f"{key}: the cheapest plan")
            plan = asdict(cheapest(case, of_hour(hour)))
            kept.keep(key, plan)
        found.append(plan)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--afresh", action="store_true", help="do again what an interrupted run has kept")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases whose key holds it")
    options = parser.parse_args(arguments)
    pace = pace_of(options)
    cases = [case for case in CASES[:: 3 if pace.quick else 1] if options.only in case.key]
    hours = HOURS[:2] if pace.quick else HOURS
    kept = ResultCache("twitter_day", DAY_SOURCES), ResultCache("twitter_day_cheapest", HINDSIGHT_SOURCES)
    for each in kept if options.afresh else ():
        each.forget()
    documents = []
    for number, case in enumerate(cases, start=1):
        step(f"{case.key} ({number} of {len(cases)})")
        runs = {mode: day_of(case, mode, hours, kept[0]) for mode in MODES}
        documents.append(document_of(case, runs, cheapest_of(case, hours, kept[1])))
    figures = [figure for document in documents for figure in figures_of(document)]
    if options.only:
        print(table([{"name": "twitter_day", "figures": [asdict(figure) for figure in figures]}]))
        return
    write("twitter_day", figures, repeats=1, packages=("gnomon", "numpy"), folder=pace.results, more={"cases": documents})


if __name__ == "__main__":
    ended_well(main)
