"""An application of variants in virtual time: queries, batches, instances and costs add up, and no answer misses its accuracy."""

import dataclasses
import random
from collections.abc import Sequence
from functools import partial

import pytest

from benchmarks import infaas_baselines as baselines
from benchmarks.simulation.variant_catalogs import (
    GPU,
    INFERENTIA,
    VARIANTS_OF_FAMILY,
    made_up_variants,
    table_2_variants,
    table_6_variants,
)
from benchmarks.simulation.variant_simulation import (
    QueryKind,
    SimulatedApplication,
    SimulatedPair,
    System,
    simulate_application,
)
from benchmarks.simulation.variant_workers import EC2_KINDS, Cluster, Workers
from gnomon_autoscaler.policies.infaas import greedy
from gnomon_autoscaler.policies.infaas.policy import FloorState, OverloadState, decide_in_overload, decide_with_floors
from gnomon_autoscaler.policies.infaas.problem import Options
from gnomon_core.errors import GnomonError
from gnomon_core.variants import CPU, Query, Variant
from gnomon_gateway.variants.selection import Rule
from gnomon_simulator.traces import Trace

A, B, C = sorted(table_2_variants(), key=lambda variant: variant.cost_per_s)
INFAAS = System("infaas", greedy.decide, greedy.GreedyState())
CAPACITY_ALONE = dataclasses.replace(INFAAS, decide=partial(greedy.decide, options=Options(late_share=None)))
PRINTED = dataclasses.replace(CAPACITY_ALONE, rule=Rule.PRINTED)
WITHIN_300_MS = (QueryKind(Query(latency_s=0.3), 1.0),)


def preloaded(*counts: tuple[Variant, int]) -> System:
    """So many instances of one variant, whatever the load is."""
    [(variant, count)] = counts
    return System("fixed", baselines.clipper, {variant.id: count}, (variant.id,))


def load(*rates_rps: float, seconds: int = 20) -> Trace:
    return Trace(1.0, tuple(rate for rate in rates_rps for _ in range(seconds)))


def integral(result: SimulatedApplication, variants: Sequence[Variant]) -> float:
    """The integral of the running instances' costs over time, from when instances began and ended."""
    price = {variant.id: variant.cost_per_s for variant in variants}
    total, rate, before_s = 0.0, 0.0, 0.0
    for time_s, name, change in result.changes:
        total += rate * (time_s - before_s)
        rate, before_s = rate + change * price[name], time_s
    assert rate == pytest.approx(0.0)
    return total


def test_table_2s_variants_have_its_rates_and_costs() -> None:
    assert [variant.saturation_rps for variant in (A, B, C)] == pytest.approx([5.0, 100.0, 800.0])
    assert [variant.inference_s for variant in (A, B, C)] == pytest.approx([0.2, 0.02, 0.015])
    assert [variant.cost_per_s for variant in (A, B, C)] == [1.0, 3.0, 16.0]


def test_table_6_has_175_variants_of_22_architectures_within_the_papers_ranges() -> None:
    variants = table_6_variants(random.Random(1))
    assert len(variants) == len({variant.id for variant in variants}) == sum(VARIANTS_OF_FAMILY.values()) == 175
    assert len({variant.architecture for variant in variants}) == 22
    assert {variant.hardware for variant in variants} == {CPU, INFERENTIA, GPU}
    assert all(0.566 <= variant.accuracy <= 0.825 and 0.59 <= variant.load_s <= 11.0 for variant in variants)
    assert variants == table_6_variants(random.Random(1))


def test_one_instance_answers_what_it_sustains_and_every_query_is_counted() -> None:
    """A answers five per second one at a time, somewhat fewer where it waits for a query that it can still answer in time."""
    result = simulate_application([A], WITHIN_300_MS, load(10.0), preloaded((A, 1)))
    assert result.queries == 200
    assert result.in_time + result.late + result.dropped + result.refused == result.queries
    assert 4.0 < result.goodput_rps <= 5.0
    assert result.late == 0
    assert max(result.latencies_s) <= 0.3 + 1e-6


def test_batches_raise_the_throughput_to_the_saturation_rate() -> None:
    result = simulate_application([C], WITHIN_300_MS, load(1600.0, seconds=5), preloaded((C, 1)))
    assert result.goodput_rps == pytest.approx(800.0, rel=0.05)
    assert result.in_time / result.batches == pytest.approx(12.0, rel=0.02)


def test_a_batch_is_small_where_its_oldest_query_has_little_time() -> None:
    kinds = (QueryKind(Query(latency_s=0.015), 1.0),)
    result = simulate_application([C], kinds, load(400.0, seconds=5), preloaded((C, 1)))
    assert result.late == 0
    assert max(result.latencies_s) <= 0.015 + 1e-6


@pytest.mark.parametrize("system", [INFAAS, PRINTED], ids=["shared", "printed"])
@pytest.mark.parametrize("seed", range(4))
def test_no_answer_is_below_its_accuracy_floor_or_of_another_architecture(system: System, seed: int) -> None:
    rng = random.Random(seed)
    variants = made_up_variants(40, rng, architectures=4)
    some = [rng.choice(variants) for _ in range(3)]
    kinds = (
        *(QueryKind(Query(variant.inference_s * 2.0, variant.accuracy), 0.2) for variant in some),
        QueryKind(Query(architecture=some[0].architecture), 0.2),
        QueryKind(Query(accuracy=0.99), 0.2),
    )
    result = simulate_application(variants, kinds, load(5.0, 60.0, 2.0), system, seed=seed)
    by_id = {variant.id: variant for variant in variants}
    assert result.in_time > 0
    for (place, name), count in result.sent.items():
        query = kinds[place].query
        assert count > 0
        assert by_id[name].accuracy >= (query.accuracy or 0.0)
        assert query.architecture in (None, by_id[name].architecture)
    assert result.refused == pytest.approx(0.2 * result.queries, rel=0.3)  # none is that accurate
    assert result.in_time + result.late + result.dropped + result.refused == result.queries


def test_shadow_helps_from_its_own_start_until_the_instance_has_started() -> None:
    """An instance answers 10/s; another one takes 8 s to load, with a Shadow the first one answers 20/s meanwhile."""
    slow = Variant("slow", "a", "", "fp32", 1, 1, 0.8, 8.0, {1: 0.1}, 100, 10.0, 1.0)
    overload = System("overload", partial(decide_in_overload, greedy.decide), OverloadState(greedy.GreedyState()))
    kinds, rates = (QueryKind(Query(latency_s=0.5), 1.0),), load(2.0, 17.0, seconds=15)
    alone = simulate_application([slow], kinds, rates, overload)
    helped = simulate_application([slow], kinds, rates, overload, pairs={"slow": SimulatedPair((0.05,), 0.1, 10)})
    never = simulate_application([slow], kinds, rates, overload, pairs={"slow": SimulatedPair((0.05,), 9.0, 10)})
    assert helped.violations < 0.7 * alone.violations
    assert helped.shadows > 0
    assert helped.instance_cost > alone.instance_cost
    assert (never.shadows, never.violations) == (0, alone.violations), "it would be ready after the instance"


def test_queries_that_accept_less_accuracy_get_it_where_the_machines_do_not_suffice_and_no_less() -> None:
    variants = [variant for variant in table_6_variants(random.Random(1)) if variant.architecture in ("resnet18", "resnext50")]
    system = System("infaas", partial(decide_with_floors, greedy.decide), FloorState(greedy.GreedyState()), scales_workers=False)
    found = {}
    for floor in (None, 0.5, 0.75):
        kinds = (QueryKind(Query(latency_s=1.0, accuracy=0.775, accuracy_floor=floor), 1.0),)
        found[floor] = simulate_application(variants, kinds, load(60.0, seconds=40), system, cluster=Cluster({CPU: 4}, 4))
    accuracies = {variant.id: variant.accuracy for variant in variants}
    assert found[0.5].violations < 0.3 * found[None].violations
    assert found[0.5].degraded > 0.5 * found[0.5].queries
    assert (found[None].degraded, found[0.75].degraded) == (0, 0), "resnet18 has 0.698"
    assert found[0.75].violations == found[None].violations
    assert {accuracies[name] for _, name in found[0.75].sent} == {0.776}


@pytest.mark.parametrize("cluster", [None, Cluster({CPU: 1, INFERENTIA: 1, GPU: 1}, 8)], ids=["unbounded", "workers"])
@pytest.mark.parametrize("system", [INFAAS, PRINTED], ids=["shared", "printed"])
def test_cost_is_the_integral_of_the_running_instances(system: System, cluster: Cluster | None) -> None:
    variants = table_2_variants()
    result = simulate_application(variants, WITHIN_300_MS, load(4.0, 700.0, 40.0), system, cluster=cluster)
    assert len(result.changes) == 2 * result.starts > 4
    assert result.instance_cost == pytest.approx(integral(result, variants))


def test_instances_that_never_change_cost_their_price_for_the_whole_time() -> None:
    result = simulate_application([B], WITHIN_300_MS, load(30.0), preloaded((B, 2)), cluster=Cluster({INFERENTIA: 1}, 1))
    assert result.instance_cost == pytest.approx(2 * 3.0 * 20.0)
    assert result.worker_cost == pytest.approx(3.0 * 20.0)


def test_infaas_upgrades_for_a_burst_and_returns_to_the_cheaper_variant() -> None:
    result = simulate_application(table_2_variants(), WITHIN_300_MS, load(4.0, 80.0, 4.0, seconds=60), CAPACITY_ALONE)
    began = [name for _, name, change in result.changes if change > 0]
    assert began[0] == A.id
    assert B.id in began
    ended = [time_s for time_s, name, change in result.changes if name == B.id and change < 0]
    assert ended
    assert max(ended) < 180.0
    assert result.instance_cost < 180.0 * B.cost_per_s


def test_shared_mix_serves_what_one_chosen_variant_does_not() -> None:
    """At 950 per second the policy loads two B and a C; the printed selection sends all to B until it is overloaded."""
    single = simulate_application(table_2_variants(), WITHIN_300_MS, load(950.0), PRINTED)
    shared = simulate_application(table_2_variants(), WITHIN_300_MS, load(950.0), CAPACITY_ALONE)
    assert shared.violation_share < 0.02
    assert single.violation_share > 5.0 * shared.violation_share
    assert all(shared.sent[0, variant.id] > 0.1 * shared.queries for variant in (B, C))


def test_instances_for_waiting_keep_queries_in_time_that_capacity_alone_does_not() -> None:
    """B serves 100 per second, and 95 of them leave no time to wait where a batch takes two thirds of the objective."""
    kinds = (QueryKind(Query(latency_s=0.03), 1.0),)
    variants = [variant for variant in table_2_variants() if variant.id == B.id]
    waiting = simulate_application(variants, kinds, load(90.0, seconds=60), INFAAS)
    capacity = simulate_application(variants, kinds, load(90.0, seconds=60), CAPACITY_ALONE)
    assert waiting.violation_share < 0.05 < capacity.violation_share
    assert waiting.cost_per_s > capacity.cost_per_s


def test_kinds_of_queries_that_share_a_fixed_variant_wait_in_one_queue_in_the_order_of_arrival() -> None:
    kinds = (QueryKind(Query(latency_s=1.0), 0.6), QueryKind(Query(latency_s=0.1), 0.4))
    system = System("fixed", baselines.clipper, {B.id: 2}, (B.id, B.id))
    result = simulate_application([B], kinds, load(50.0, seconds=60), system)
    assert result.violation_share < 0.01


def test_same_seed_gives_the_same_run_and_another_seed_other_arrivals() -> None:
    first, again, other = (
        simulate_application(table_2_variants(), WITHIN_300_MS, load(50.0), INFAAS, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.latencies_s != other.latencies_s


def test_workers_are_added_for_load_and_ended_without_it() -> None:
    cluster = Cluster({CPU: 1}, 6, start_s=5.0)
    system = System("sm+", partial(baselines.sagemaker, fixed=(A.id,)), baselines.ReplicaState(), (A.id,))
    busy = simulate_application([A], WITHIN_300_MS, load(20.0, seconds=60), system, cluster=cluster)
    assert busy.worker_cost > 1.5 * 2.0 * 60.0
    calm = simulate_application([A], WITHIN_300_MS, load(20.0, 1.0, seconds=60), system, cluster=cluster)
    assert calm.worker_cost < 2.0 * busy.worker_cost


def test_an_instance_is_placed_where_least_is_left_and_only_on_its_hardware() -> None:
    workers = Workers(Cluster({CPU: 2, INFERENTIA: 1}, 3))
    first, second, third = (workers.place(A, 0.0) for _ in range(3))
    assert first is not None
    assert first is second
    assert third is not None
    assert third is not first
    assert workers.place(C, 0.0) is None  # there is no GPU
    assert [workers.place(B, 0.0) is None for _ in range(5)] == [False] * 4 + [True]
    assert workers.capacity(0.0) == {"cores": 8.0 * 2 + 4.0, INFERENTIA: 4.0, GPU: 0.0}
    assert {kind.hardware for kind in EC2_KINDS} == {CPU, INFERENTIA, GPU}


@pytest.mark.parametrize(
    ("kinds", "trace", "code"),
    [
        ((), load(1.0), "bad_query_kinds"),
        ((QueryKind(Query(), 0.0),), load(1.0), "bad_query_kinds"),
        (WITHIN_300_MS, Trace(0.1, (1.0,)), "bad_trace"),
    ],
)
def test_unusable_loads_are_refused(kinds: Sequence[QueryKind], trace: Trace, code: str) -> None:
    with pytest.raises(GnomonError) as refused:
        simulate_application([A], kinds, trace, INFAAS)
    assert refused.value.code == code
