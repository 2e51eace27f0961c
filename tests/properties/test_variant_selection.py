"""The selector chooses what a search over all variants and instances chooses, whatever the queries, loads and states."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.selection import Loaded, brute_force
from benchmarks.simulation.variant_catalogs import made_up_variants
from gnomon_core.variants import Query, VariantState
from gnomon_gateway.variants.selection import Rule, VariantSelector

STRAINED = (VariantState.OVERLOADED, VariantState.INTERFERED)


class Cluster:
    """A selector with the same events told to plain dictionaries."""

    def __init__(self, seed: int, rule: Rule) -> None:
        self.rng = random.Random(seed)
        self.variants = made_up_variants(self.rng.randint(1, 60), self.rng, architectures=self.rng.randint(1, 5))
        self.selector = VariantSelector(self.variants, rule)
        self.instances: dict[tuple[str, str], Loaded] = {}
        self.workers: dict[str, tuple[str, float]] = {}
        self.loading = self.rng.random()  # clusters with few loaded instances, and with many

    def event(self) -> None:
        rng, variant = self.rng, self.rng.choice(self.variants)
        worker = f"w{rng.randrange(5)}"
        load = rng.choice((0.0, 0.25, rng.random()))
        state = rng.choice((VariantState.ACTIVE, *STRAINED))
        kind = rng.random()
        if kind < 0.05:
            self.selector.worker_gone(worker)
            self.workers.pop(worker, None)
            self.instances = {place: seen for place, seen in self.instances.items() if place[1] != worker}
        elif kind < 0.2:
            self.workers[worker] = (rng.choice(("cpu", "gpu", "inferentia")), load)
            self.selector.worker_changed(worker, *self.workers[worker])
        elif rng.random() < self.loading:
            loaded = Loaded(state, load, rng.randint(1, 3), rng.randrange(9))
            self.instances[variant.id, worker] = loaded
            self.selector.instance_loaded(
                variant.id, worker, state, load, instances=loaded.instances, pending=self.pending(variant.id, worker)
            )
        elif rng.random() < 0.5:
            self.selector.instance_changed(variant.id, worker, state=state, load=load)
            if (before := self.instances.get((variant.id, worker))) is not None:
                self.instances[variant.id, worker] = replace(before, state=state, load=load, pending=rng.randrange(9))
        else:
            self.instances.pop((variant.id, worker), None)
            self.selector.instance_unloaded(variant.id, worker)

    def pending(self, variant: str, worker: str) -> Callable[[], int]:
        return lambda: self.instances[variant, worker].pending

    def query(self) -> Query:
        rng, like = self.rng, self.rng.choice(self.variants)
        accuracy = rng.choice((None, like.accuracy, rng.uniform(0.5, 0.9)))
        floors = (None, accuracy, accuracy * rng.random(), rng.choice(self.variants).accuracy) if accuracy else (None,)
        floor = rng.choice(floors)
        return Query(
            latency_s=rng.choice((None, like.inference_s, like.inference_s * rng.uniform(0.2, 2.0))),
            accuracy=accuracy,
            accuracy_floor=None if floor is None else min(floor, accuracy or 0.0),
            cost_per_s=rng.choice((None, None, like.cost_per_s, rng.uniform(0.2, 20.0))),
            architecture=like.architecture if rng.random() < 0.2 else None,
            variant=like.id if rng.random() < 0.1 else None,
        )


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("part", range(10))
def test_selection_equals_a_search_over_everything(part: int, rule: Rule) -> None:
    """1,000 queries in each part, in 50 clusters that change before each query."""
    steps = {"active": 0, "started": 0, "strained": 0, "nearest": 0}
    if rule is Rule.SOONEST:
        steps |= {"degraded active": 0, "degraded started": 0, "degraded strained": 0}
    for number in range(50):
        cluster = Cluster(50 * part + number, rule)
        for _ in range(20):
            for _ in range(cluster.rng.randrange(12)):
                cluster.event()
            query = cluster.query()
            expected = brute_force(cluster.variants, cluster.instances, cluster.workers, query, rule)
            assert cluster.selector.select(query) == expected
            loaded = cluster.instances.get((expected.variant.id, expected.worker))
            step = "strained" if loaded is not None and loaded.state in STRAINED else "active" if expected.loaded else "started"
            step = f"degraded {step}" if expected.degraded else step
            steps[step if expected.satisfies else "nearest"] += 1
            assert expected.degraded == (expected.satisfies and expected.variant.accuracy < (query.accuracy or 0.0))
    assert min(steps.values()) > 4  # each way to choose was compared
