"""How long it takes to select the variant and worker of a query, and how much longer a search over everything takes.

    python -m benchmarks.selection [--quick]

Catalogs of 175 variants, as many as INFaaS was evaluated with, and of 1,000, made up within the paper's ranges, on 12 workers. A
quarter of the variants is loaded on one to all workers of its hardware, a quarter of those instances is Overloaded or Interfered.
Queries are all different: a latency, an accuracy and sometimes a cost around those of a variant; one in five names an
architecture, one in ten a variant. Between two queries an instance's load changes, as in a gateway; that is timed by itself.

The last catalog is the hardest one for the search for the nearest variant: 1,000 variants of which none is better than another in
every respect, and only queries that none satisfies.

Each run times 20,000 calls one by one, the timer's own cost included. The paper's Table 7 has 0.9 to 3.5 ms for the same
decisions against a Redis on the controller's machine, and a brute-force search that takes 27 to 44 times as long. It had 175
variants and says that the time does not depend on their number.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.programs import Pace, start, step
from benchmarks.report import Figure, measured, write
from gnomon_core.variants import Choice, Query, Variant, VariantState
from gnomon_gateway.variants.selection import VariantSelector, distance, preference, satisfies, shortfall, start_order
from gnomon_simulator.variant_catalogs import made_up_variants

Instances = Mapping[tuple[str, str], tuple[VariantState, float]]
Workers = Mapping[str, tuple[str, float]]

STRAINED = (VariantState.OVERLOADED, VariantState.INTERFERED)
CATALOGS = (175, 1000)
WORKERS = {f"worker{number}": (("cpu", "cpu", "inferentia", "gpu")[number % 4], number / 12) for number in range(12)}
CALLS, QUICK_CALLS, BRUTE_FORCE_CALLS = 20_000, 2_000, 200
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
    for repeat in range(pace.repeats):
        chance = random.Random(1000 * count + repeat)
        variants = made_up_variants(count, chance)
        instances = loaded(variants, chance)
        selector = selector_of(variants, instances)
        queries = [query_like(chance.choice(variants), chance) for _ in range(QUICK_CALLS if pace.quick else CALLS)]
        places = list(instances)
        changes = [(*chance.choice(places), chance.random()) for _ in queries]
        taken, changed = timed(selector, queries, changes)
        medians.append(taken[len(taken) // 2])
        p99s.append(taken[len(taken) * 99 // 100])
        updates.append(changed[len(changed) // 2])
        begun_ns = time.perf_counter_ns()
        for query in queries[:BRUTE_FORCE_CALLS]:
            brute_force(variants, instances, WORKERS, query)
        slower.append((time.perf_counter_ns() - begun_ns) / BRUTE_FORCE_CALLS / 1e3)
    return [
        measured(f"select_{count}_median", medians, "µs", at_most=MEDIAN_GOAL_US, detail=PAPER),
        measured(f"select_{count}_p99", p99s, "µs", at_most=P99_GOAL_US, detail=PAPER),
        measured(f"update_{count}_median", updates, "µs", detail="a changed load"),
        measured(f"brute_force_{count}_mean", slower, "µs", detail="every variant and instance is looked at"),
    ]


def of_hardest(pace: Pace) -> list[Figure]:
    """Selections where the nearest variant is searched for among all variants."""
    medians, p99s = [], []
    for repeat in range(pace.repeats):
        chance = random.Random(repeat)
        variants = [
            replace(one, accuracy=0.5 + number / 4000, cost_per_s=1.0 + number, latency_s={one.max_batch: 1.0})
            for number, one in enumerate(made_up_variants(1000, chance))
        ]
        selector = selector_of(variants, loaded(variants, chance))
        queries = [
            Query(accuracy=chance.uniform(0.8, 1.0), cost_per_s=chance.uniform(1, 500), latency_s=chance.uniform(0.5, 0.9))
            for _ in range(QUICK_CALLS if pace.quick else CALLS)
        ]
        taken, _ = timed(selector, queries, [])
        medians.append(taken[len(taken) // 2])
        p99s.append(taken[len(taken) * 99 // 100])
    return [
        measured("nearest_1000_median", medians, "µs", detail="no variant satisfies a query, none is better than another"),
        measured("nearest_1000_p99", p99s, "µs"),
    ]


def loaded(variants: Sequence[Variant], chance: random.Random) -> dict[tuple[str, str], tuple[VariantState, float]]:
    """Instances of a quarter of the variants, on workers with their hardware."""
    instances = {}
    for variant in chance.sample(list(variants), len(variants) // 4):
        workers = [name for name, (hardware, _) in WORKERS.items() if hardware == variant.hardware]
        for worker in chance.sample(workers, chance.randint(1, len(workers))):
            state = chance.choice(STRAINED) if chance.random() < 0.25 else VariantState.ACTIVE
            instances[variant.id, worker] = (state, chance.random())
    return instances


def selector_of(variants: Sequence[Variant], instances: Instances) -> VariantSelector:
    """A selector that has been told all that."""
    selector = VariantSelector(variants)
    for worker, (hardware, utilization) in WORKERS.items():
        selector.worker_changed(worker, hardware, utilization)
    for (variant, worker), (state, load) in instances.items():
        selector.instance_loaded(variant, worker, state, load)
    return selector


def query_like(variant: Variant, chance: random.Random) -> Query:
    """A query whose constraints are around what a variant offers."""
    return Query(
        latency_s=variant.inference_s * chance.uniform(0.7, 2.0),
        accuracy=min(1.0, variant.accuracy * chance.uniform(0.8, 1.02)),
        cost_per_s=variant.cost_per_s * chance.uniform(0.9, 3.0) if chance.random() < 0.3 else None,
        architecture=variant.architecture if chance.random() < 0.2 else None,
        variant=variant.id if chance.random() < 0.1 else None,
    )


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


def brute_force(variants: tuple[Variant, ...], instances: Instances, workers: Workers, query: Query) -> Choice:
    """Algorithm 1 by looking at every variant and every instance."""

    def least_loaded(variant: Variant, *states: VariantState) -> str:
        return min(
            (load, worker)
            for (name, worker), (state, load) in instances.items()
            if (name, state) in {(variant.id, one) for one in states}
        )[1]

    def least_utilized(variant: Variant) -> str:
        return min(((used, name) for name, (kind, used) in workers.items() if kind == variant.hardware), default=(0.0, ""))[1]

    states: dict[str, set[VariantState]] = {variant.id: set() for variant in variants}
    for (name, _), (state, _) in instances.items():
        states[name].add(state)
    matching = [variant for variant in variants if satisfies(variant, query)]
    if active := [variant for variant in matching if VariantState.ACTIVE in states[variant.id]]:
        found = min(active, key=preference)
        return Choice(found, least_loaded(found, VariantState.ACTIVE))
    hardware = {kind for kind, _ in workers.values()}
    if inactive := [one for one in matching if not states[one.id] and (not workers or one.hardware in hardware)]:
        found = min(inactive, key=start_order)
        return Choice(found, least_utilized(found), loaded=False)
    rest = {variant.id: variant for variant in matching}
    if strained := [
        (load, preference(rest[name]), worker)
        for (name, worker), (state, load) in instances.items()
        if name in rest and state in STRAINED
    ]:
        _, (*_, name), worker = min(strained)
        return Choice(rest[name], worker)
    named = [
        variant
        for variant in variants
        if query.architecture in (None, variant.architecture) and query.variant in (None, variant.id)
    ]
    found = min(named, key=lambda variant: (distance(variant, query), preference(variant)))
    misses = shortfall(found, query)
    if VariantState.ACTIVE in states[found.id]:
        worker, loaded = least_loaded(found, VariantState.ACTIVE), True
    elif states[found.id]:
        worker, loaded = least_loaded(found, *STRAINED), True
    else:
        worker, loaded = least_utilized(found), False
        if workers and found.hardware not in hardware:
            misses = ", ".join(part for part in (misses, f"no worker has {found.hardware}") if part)
    return Choice(found, worker, loaded, satisfies=False, shortfall=misses)


if __name__ == "__main__":
    start(main, __doc__)
