"""INFaaS's baselines: a fixed variant for each kind of query, instances set beforehand (Clipper+) or by load (SM+)."""

from collections.abc import Mapping

import pytest

from benchmarks import infaas_baselines as baselines
from gnomon_core.errors import GnomonError
from gnomon_core.variant_scaling import ApplicationObservation, Demand, VariantMember
from gnomon_core.variants import CPU
from gnomon_simulator.variant_catalogs import GPU, table_2_variants

BY_COST = sorted(table_2_variants(), key=lambda variant: variant.cost_per_s)
A, B, C = BY_COST


def seen(
    loads: Mapping[str, float], running: Mapping[str, int], now_s: float = 0.0, capacity: Mapping[str, float] | None = None
) -> ApplicationObservation:
    members = tuple(
        VariantMember(variant, running.get(variant.id, 0), running.get(variant.id, 0), loads.get(variant.id, 0.0))
        for variant in BY_COST
    )
    return ApplicationObservation(now_s, "faces", members, (), capacity or {})


@pytest.mark.parametrize(
    ("latency_s", "hardware", "chosen"), [(0.3, None, C), (0.3, CPU, A), (0.016, None, C), (0.3, GPU, C), (0.02, None, C)]
)
def test_developer_fixes_the_cheapest_variant_per_sample_within_the_objective(
    latency_s: float, hardware: str | None, chosen: object
) -> None:
    assert baselines.fixed_variant(BY_COST, Demand(0.0, latency_s), baselines.cost_per_sample, hardware) is chosen


def test_sagemakers_developer_fixes_the_variant_that_answers_one_sample_first() -> None:
    assert baselines.fixed_variant(BY_COST, Demand(0.0, 0.3), baselines.single_sample_s) is C


def test_no_variant_within_the_objective_is_an_error_that_names_the_hardware() -> None:
    with pytest.raises(GnomonError, match="No variant satisfies the queries on cpu"):
        baselines.fixed_variant(BY_COST, Demand(0.0, 0.05), baselines.cost_per_sample, CPU)


def test_clipper_keeps_the_instances_for_its_peak_at_any_load() -> None:
    counts: Mapping[str, int] = baselines.preloaded([(A, 14.0), (B, 0.0)])
    assert counts == {A.id: 3, B.id: 1}
    for load_rps in (0.0, 500.0):
        plan, counts = baselines.clipper(seen({A.id: load_rps}, counts), counts)
        assert (plan.instances, plan.cost_per_s) == ({A.id: 3, B.id: 1}, 6.0)


def test_clipper_shares_given_resources_by_what_each_variant_needs() -> None:
    counts = baselines.preloaded([(A, 40.0), (B, 400.0)], capacity={"cores": 17.0})
    assert counts == {A.id: 3, B.id: 5}  # nine and five are needed; A has four cores, B one


def test_sagemaker_scales_up_at_once_and_down_after_the_loading_time() -> None:
    state = baselines.ReplicaState()
    plan, state = baselines.sagemaker(seen({A.id: 20.0}, {A.id: 1}), state, [A.id])
    assert plan.instances == {A.id: 5}
    for now_s, count in ((10.0, 5), (10.0 + A.load_s / 2, 5), (10.0 + A.load_s, 2)):
        plan, state = baselines.sagemaker(seen({A.id: 8.0}, {A.id: 5}, now_s), state, [A.id])
        assert plan.instances == {A.id: count}


def test_sagemaker_keeps_what_a_peak_needed_while_it_waits() -> None:
    """The number after T_v is the largest that was needed meanwhile."""
    state = baselines.ReplicaState()
    for now_s, load_rps in ((0.0, 1.0), (A.load_s / 2, 12.0), (A.load_s, 1.0)):
        plan, state = baselines.sagemaker(seen({A.id: load_rps}, {A.id: 5}, now_s), state, [A.id])
    assert plan.instances == {A.id: 3}


def test_sagemaker_never_exchanges_the_variant_and_keeps_one_instance() -> None:
    plan, _ = baselines.sagemaker(seen({A.id: 0.0, B.id: 900.0}, {A.id: 1}), baselines.ReplicaState(), [A.id])
    assert plan.instances == {A.id: 1}


def test_sagemaker_reports_the_load_for_which_resources_do_not_suffice() -> None:
    plan, _ = baselines.sagemaker(seen({A.id: 20.0}, {A.id: 1}, capacity={"cores": 8.0}), baselines.ReplicaState(), [A.id])
    assert plan.instances == {A.id: 2}
    assert plan.shortfall_rps == pytest.approx(1.05 * 20.0 - 10.0)
