"""The time to select the variant and worker of a query, and the time of an exhaustive search beside it.

    python -m benchmarks.selection [--quick]

Catalogs of 175 variants, as many as INFaaS was evaluated with, and of 1,000, made up within the paper's ranges, on 12 workers. A
quarter of the variants is loaded on one to all workers of its hardware, a quarter of those instances is Overloaded or Interfered.
Queries are all different: a latency, an accuracy and sometimes a cost around those of a variant; one in five names an
architecture, one in ten a variant. Between two queries an instance's load changes, as in a gateway; that is timed by itself.

The last catalog is the hardest one for the search for the nearest variant: 1,000 variants of which none is better than another in
every respect, and only queries that none satisfies.

`request` figures have the reading of the constraints in them: six usual headers of a request, and those of its constraints.
Clients have few kinds of queries: 100 different ones are drawn from, whose constraints the gateway keeps. `request_new` figures
are of queries that are all different. `select_floor` figures are of selections for queries with an accuracy floor.

Each run times 20,000 calls one by one, the timer's own cost included. The paper's Table 7 has 0.9 to 3.5 ms for the same
decisions against a Redis on the controller's machine, and a brute-force search that takes 27 to 44 times as long. It had 175
variants and says that the time does not depend on their number.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter

from benchmarks.programs import Pace, start, step
from benchmarks.report import Figure, measured, write
from benchmarks.simulation.variant_catalogs import made_up_variants
from gnomon_core.variants import Choice, Query, Variant, VariantState
from gnomon_gateway.applications.queries import read_constraints
from gnomon_gateway.variants.selection import (
    Rule,
    VariantSelector,
    distance,
    expected_s,
    preference,
    satisfies,
    shortfall,
    single_s,
    start_order,
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Instances of a variant on a worker, with so many samples that wait or execute there."""

    state: VariantState = VariantState.ACTIVE
    load: float = 0.0
    instances: int = 1
    pending: int = 0


Instances = Mapping[tuple[str, str], Loaded]
Workers = Mapping[str, tuple[str, float]]

STRAINED = (VariantState.OVERLOADED, VariantState.INTERFERED)
CATALOGS = (175, 1000)
WORKERS = {f"worker{number}": (("cpu", "cpu", "inferentia", "gpu")[number % 4], number / 12) for number in range(12)}
CALLS, QUICK_CALLS, BRUTE_FORCE_CALLS = 20_000, 2_000, 200
KINDS = 100
USUAL_HEADERS = {
    b"host": b"127.0.0.1:8080",
    b"content-type": b"application/octet-stream",
    b"content-length": b"150528",
    b"inference-header-content-length": b"213",
    b"accept": b"*/*",
    b"user-agent": b"python-urllib3/2.2",
}
MEDIAN_GOAL_US, P99_GOAL_US = 10.0, 50.0
PAPER = "the paper's Table 7: 900 to 3,500 µs"


def main(pace: Pace) -> None:
    figures: list[Figure] = []
    for count in CATALOGS:
        step(f"{count} variants")
        figures += of_catalog(count, pace)
    step("queries that no variant satisfies")
    figures += of_hardest(pace)
    write("selection", figures, repeats=pace.repeats, packages=("gnomon", "numpy"), folder=pace.results)


def of_catalog(count: int, pace: Pace) -> list[Figure]:
    """Selections, updates, and the search over everything, in one catalog."""
    medians, p99s, updates, slower = [], [], [], []
    floors: list[list[float]] = []
    requests: dict[str, list[list[float]]] = {"request": [], "request_new": []}
    for repeat in range(pace.repeats):
        rng = random.Random(1000 * count + repeat)
        variants = made_up_variants(count, rng)
        instances = loaded(variants, rng)
        selector = selector_of(variants, instances)
        queries = [query_like(rng.choice(variants), rng) for _ in range(QUICK_CALLS if pace.quick else CALLS)]
        places = list(instances)
        changes = [(*rng.choice(places), rng.random()) for _ in queries]
        taken, changed = timed(selector, queries, changes)
        medians.append(taken[len(taken) // 2])
        p99s.append(taken[len(taken) * 99 // 100])
        floors.append(timed(selector, [with_floor(query, rng) for query in queries], changes)[0])
        few = rng.choices(queries[:KINDS], k=len(queries))
        for key, asked in (("request", few), ("request_new", queries)):
            requests[key].append(timed_requests(selector, [headers_of(query) for query in asked], changes))
        updates.append(changed[len(changed) // 2])
        begun_ns = time.perf_counter_ns()
        for query in queries[:BRUTE_FORCE_CALLS]:
            brute_force(variants, instances, WORKERS, query)
        slower.append((time.perf_counter_ns() - begun_ns) / BRUTE_FORCE_CALLS / 1e3)
    return [
        measured(f"select_{count}_median", medians, "µs", at_most=MEDIAN_GOAL_US, detail=PAPER),
        measured(f"select_{count}_p99", p99s, "µs", at_most=P99_GOAL_US, detail=PAPER),
        *(
            measured(f"{key}_{count}_{name}", [run[int(len(run) * share)] for run in runs], "µs", at_most=goal, detail=PAPER)
            for key, runs in {**requests, "select_floor": floors}.items()
            for name, share, goal in (("median", 0.5, MEDIAN_GOAL_US), ("p99", 0.99, P99_GOAL_US))
        ),
        measured(f"update_{count}_median", updates, "µs", detail="a changed load"),
        measured(f"brute_force_{count}_mean", slower, "µs", detail="every variant and instance is looked at"),
    ]


def of_hardest(pace: Pace) -> list[Figure]:
    """Selections where the nearest variant is searched for among all variants."""
    medians, p99s = [], []
    for repeat in range(pace.repeats):
        rng = random.Random(repeat)
        variants = [
            replace(variant, accuracy=0.5 + number / 4000, cost_per_s=1.0 + number, latency_s={variant.max_batch: 1.0})
            for number, variant in enumerate(made_up_variants(1000, rng))
        ]
        selector = selector_of(variants, loaded(variants, rng))
        queries = [
            Query(accuracy=rng.uniform(0.8, 1.0), cost_per_s=rng.uniform(1, 500), latency_s=rng.uniform(0.5, 0.9))
            for _ in range(QUICK_CALLS if pace.quick else CALLS)
        ]
        taken, _ = timed(selector, queries, [])
        medians.append(taken[len(taken) // 2])
        p99s.append(taken[len(taken) * 99 // 100])
    return [
        measured("nearest_1000_median", medians, "µs", detail="no variant satisfies a query, none is better than another"),
        measured("nearest_1000_p99", p99s, "µs"),
    ]


def loaded(variants: Sequence[Variant], rng: random.Random) -> dict[tuple[str, str], Loaded]:
    """One to three instances of a quarter of the variants, on workers with their hardware; half of them have samples to do."""
    instances = {}
    for variant in rng.sample(list(variants), len(variants) // 4):
        workers = [name for name, (hardware, _) in WORKERS.items() if hardware == variant.hardware]
        for worker in rng.sample(workers, rng.randint(1, len(workers))):
            state = rng.choice(STRAINED) if rng.random() < 0.25 else VariantState.ACTIVE
            count = rng.randint(1, 3)
            instances[variant.id, worker] = Loaded(state, rng.random(), count, rng.randrange(2 * count + 1))
    return instances


def selector_of(variants: Sequence[Variant], instances: Instances, rule: Rule = Rule.SOONEST) -> VariantSelector:
    """A selector that has been told all that."""
    selector = VariantSelector(variants, rule)
    for worker, (hardware, utilization) in WORKERS.items():
        selector.worker_changed(worker, hardware, utilization)
    for (variant, worker), instance in instances.items():
        selector.instance_loaded(
            variant, worker, instance.state, instance.load, instances=instance.instances, pending=partial(int, instance.pending)
        )
    return selector


def query_like(variant: Variant, rng: random.Random) -> Query:
    """A query whose constraints are around what a variant offers."""
    return Query(
        latency_s=variant.inference_s * rng.uniform(0.7, 2.0),
        accuracy=min(1.0, variant.accuracy * rng.uniform(0.8, 1.02)),
        cost_per_s=variant.cost_per_s * rng.uniform(0.9, 3.0) if rng.random() < 0.3 else None,
        architecture=variant.architecture if rng.random() < 0.2 else None,
        variant=variant.id if rng.random() < 0.1 else None,
    )


def with_floor(query: Query, rng: random.Random) -> Query:
    """Return the query with a lower accepted accuracy."""
    return query if query.accuracy is None else replace(query, accuracy_floor=query.accuracy * rng.uniform(0.7, 1.0))


def timed(
    selector: VariantSelector, queries: Sequence[Query], changes: Sequence[tuple[str, str, float]]
) -> tuple[list[float], list[float]]:
    """Microseconds of each selection and of each change between two of them, sorted."""
    clock, taken, changed = time.perf_counter_ns, [], []
    for number, query in enumerate(queries):
        begun_ns = clock()
        selector.select(query)
        taken.append((clock() - begun_ns) / 1e3)
        if changes:
            variant, worker, load = changes[number]
            begun_ns = clock()
            selector.instance_changed(variant, worker, load=load)
            changed.append((clock() - begun_ns) / 1e3)
    return sorted(taken), sorted(changed)


def headers_of(query: Query) -> dict[bytes, bytes]:
    """The headers of a request with these constraints."""
    constraints = {
        b"x-gnomon-latency-ms": None if query.latency_s is None else f"{1e3 * query.latency_s:.3f}",
        b"x-gnomon-accuracy": None if query.accuracy is None else f"{query.accuracy:.4f}",
        b"x-gnomon-cost": None if query.cost_per_s is None else f"{query.cost_per_s:.3f}",
        b"x-gnomon-model": query.architecture,
        b"x-gnomon-variant": query.variant,
    }
    return USUAL_HEADERS | {name: text.encode() for name, text in constraints.items() if text is not None}


def timed_requests(
    selector: VariantSelector, requests: Sequence[dict[bytes, bytes]], changes: Sequence[tuple[str, str, float]]
) -> list[float]:
    """Microseconds of each reading of constraints and selection, sorted; a load changes between two of them."""
    clock, taken = time.perf_counter_ns, []
    for headers, (variant, worker, load) in zip(requests, changes, strict=True):
        begun_ns = clock()
        selector.select(read_constraints(headers).query)
        taken.append((clock() - begun_ns) / 1e3)
        selector.instance_changed(variant, worker, load=load)
    return sorted(taken)


def brute_force(
    variants: tuple[Variant, ...], instances: Instances, workers: Workers, query: Query, rule: Rule = Rule.SOONEST
) -> Choice:
    """The choice by looking at every variant and every instance."""
    search = _Search(variants, instances, workers, rule)
    latency_s = math.inf if query.latency_s is None else query.latency_s
    matching = [variant for variant in variants if satisfies(variant, query)]
    active = search.loaded(matching, (VariantState.ACTIVE,))
    if active is not None and (rule is Rule.PRINTED or active[0] <= latency_s):
        return active[1]
    loaded = _earliest(active, search.loaded(matching, STRAINED))
    steps = [None if loaded is None else loaded[1], search.started(matching)]
    if rule is Rule.PRINTED or query.accuracy_floor is None:
        found = [choice for choice in (reversed(steps) if rule is Rule.PRINTED else steps) if choice is not None]
        return found[0] if found else search.nearest(query)
    at_floor = replace(query, accuracy=query.accuracy_floor, accuracy_floor=None)
    below = [variant for variant in variants if satisfies(variant, at_floor) and variant not in matching]
    degraded = search.degraded(below, latency_s, loaded)
    found = [choice for choice in (degraded, *steps) if choice is not None]
    return found[0] if found else search.below(below, at_floor)


@dataclass(frozen=True, slots=True)
class _Search:
    """The searches of `brute_force` over everything."""

    variants: tuple[Variant, ...]
    instances: Instances
    workers: Workers
    rule: Rule

    def loaded(self, variants: Sequence[Variant], states: Sequence[VariantState]) -> tuple[float, Choice] | None:
        """The instance that answers first, of these variants in these states."""
        return loaded_choice(variants, self.instances, states, self.rule)

    def started(self, variants: Sequence[Variant]) -> Choice | None:
        """The unloaded variant that answers first."""
        there = {name for name, _ in self.instances}
        startable = [
            variant for variant in variants if variant.id not in there and (not self.workers or self.least_utilized(variant))
        ]
        found = min(startable, key=start_order, default=None)
        return None if found is None else Choice(found, self.least_utilized(found), loaded=False)

    def degraded(self, below: Sequence[Variant], latency_s: float, loaded: tuple[float, Choice] | None) -> Choice | None:
        """A loaded variant below the wished accuracy; `loaded` is the one of the wished accuracy that answers first."""
        for variant in sorted(below, key=lambda candidate: (-candidate.accuracy, single_s(candidate), preference(candidate))):
            active = self.loaded([variant], (VariantState.ACTIVE,))
            if active is not None and active[0] <= latency_s:
                return replace(active[1], degraded=True)
        if loaded is not None and loaded[0] <= latency_s:
            return None
        lower = _earliest(self.loaded(below, (VariantState.ACTIVE,)), self.loaded(below, STRAINED))
        if lower is None or (loaded is not None and lower[0] > latency_s):
            return None
        return replace(lower[1], degraded=True)

    def below(self, below: Sequence[Variant], at_floor: Query) -> Choice:
        """An unloaded variant below the wished accuracy, or the one that is nearest to the floor."""
        started = self.started(below)
        return self.nearest(at_floor) if started is None else replace(started, degraded=True)

    def nearest(self, query: Query) -> Choice:
        """The nearest variant, wherever it is."""
        named = [
            candidate
            for candidate in self.variants
            if query.architecture in (None, candidate.architecture) and query.variant in (None, candidate.id)
        ]
        found = min(named, key=lambda variant: (distance(variant, query), preference(variant)))
        misses = shortfall(found, query)
        for states in ((VariantState.ACTIVE,), STRAINED):
            if (placed := self.loaded([found], states)) is not None:
                return replace(placed[1], satisfies=False, shortfall=misses)
        worker = self.least_utilized(found)
        if self.workers and not worker:
            misses = ", ".join(part for part in (misses, f"no worker has {found.hardware}") if part)
        return Choice(found, worker, loaded=False, satisfies=False, shortfall=misses)

    def least_utilized(self, variant: Variant) -> str:
        """The least utilized worker with the variant's hardware; "" if there is none."""
        found = ((used, name) for name, (kind, used) in self.workers.items() if kind == variant.hardware)
        return min(found, default=(0.0, ""))[1]


def _earliest(*found: tuple[float, Choice] | None) -> tuple[float, Choice] | None:
    return min((choice for choice in found if choice is not None), key=itemgetter(0), default=None)


def loaded_choice(
    variants: Sequence[Variant], instances: Instances, states: Sequence[VariantState], rule: Rule
) -> tuple[float, Choice] | None:
    """The choice among the instances of these variants in these states, and when it is expected to answer."""
    known = {variant.id: variant for variant in variants}
    found = []
    for (name, worker), instance in instances.items():
        if name in known and instance.state in states:
            variant = known[name]
            seconds = expected_s(variant, instance.pending, instance.instances)
            if rule is Rule.SOONEST:
                order: tuple[object, ...] = (seconds, single_s(variant), preference(variant), instance.load, worker)
            elif VariantState.ACTIVE in states:
                order = (preference(variant), instance.load, worker)
            else:
                order = (instance.load, preference(variant), worker)
            found.append((order, seconds, Choice(variant, worker)))
    return min(found, key=itemgetter(0))[1:] if found else None


if __name__ == "__main__":
    start(main, __doc__)
