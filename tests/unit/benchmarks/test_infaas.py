"""INFaaS, its baselines and its report: Table 3 is exact, loads have the stated rates, claims are computed as worded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import infaas_baselines as baselines
from benchmarks.infaas import Summary, compared, summary_of, table_3
from benchmarks.infaas_loads import LOADS, MOST_RPS, POPULAR, mapped
from benchmarks.reports.infaas.__main__ import published_claims
from benchmarks.reports.infaas.configurations import configured
from benchmarks.reports.infaas.serving import reaches, windows
from benchmarks.reports.report import rows_of
from benchmarks.simulation.variant_catalogs import GPU, table_2_variants
from benchmarks.simulation.variant_simulation import simulate_application
from gnomon_core.errors import GnomonError
from gnomon_core.variant_scaling import ApplicationObservation, Demand, VariantMember
from gnomon_core.variants import CPU
from gnomon_gateway.variants.selection import satisfies
from gnomon_simulator.traces import Trace


def test_table_3_follows_from_table_2_by_program_and_heuristic() -> None:
    figures = table_3()
    assert [figure.value for figure in figures] == [2.0, 2.0, 3.0, 3.0, 22.0, 22.0]
    assert {figure.met for figure in figures} == {"met"}


def test_mapped_trace_lies_between_both_rates() -> None:
    assert mapped(Trace(1.0, (5.0, 30.0, 55.0)), 10.0, 1000.0).counts == pytest.approx((10.0, 505.0, 1000.0))


@pytest.mark.parametrize("name", ["models", "hour", "day"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_developers_variants_satisfy_their_queries_and_fit_their_workers(name: str, seed: int) -> None:
    case = LOADS[name](seed, quick=True)
    by_id = {variant.id: variant for variant in case.variants}
    assert sum(kind.share for kind in case.kinds) == pytest.approx(1.0)
    for system, cluster in case.systems:
        assert {kind.hardware for kind in cluster.kinds} >= set(cluster.initial)
        for kind, fixed in zip(case.kinds, system.fixed, strict=False):
            assert satisfies(by_id[fixed], kind.query)
            if name != "day":
                assert by_id[fixed].hardware == (GPU if kind.query.architecture in POPULAR else CPU)
        if system.name.startswith("clipper"):
            short = simulate_application(case.variants, case.kinds, Trace(1.0, (1.0, 1.0)), system, cluster=cluster)
            assert short.unplaced == 0


def test_load_of_section_6_1_reaches_its_range() -> None:
    counts = LOADS["models"](1, quick=False).load.counts
    assert (min(counts), max(counts)) == pytest.approx((10.0, MOST_RPS))


def test_ratios_above_one_are_in_favour_but_for_costs() -> None:
    ours: Summary = {"violation_share": 0.01, "throughput_rps": 90.0, "cost_per_s": 10.0, "worker_cost_per_s": 12.0}
    theirs: Summary = {"violation_share": 0.04, "throughput_rps": 60.0, "cost_per_s": 40.0, "worker_cost_per_s": 48.0}
    figures = compared("hour", "infaas", "sm", [(ours, theirs)])
    assert [figure.value for figure in figures] == pytest.approx([1.5, 4.0, 0.25, 0.25])
    assert [figure.met for figure in figures] == ["met", "met", "met", ""]
    assert [figure.met for figure in compared("hour", "infaas_printed", "sm", [(ours, theirs)])] == [""] * 4
    assert all(figure.key.startswith("simulated hour: ") for figure in figures)


def test_summary_has_what_figures_are_made_of() -> None:
    case = LOADS["flat"](1, quick=True)
    [system, cluster] = case.systems[0]
    found = summary_of(simulate_application(case.variants, case.kinds, case.load, system, cluster=cluster))
    assert found["queries"] == 240
    assert found["throughput_rps"] == pytest.approx(4.0 * (1.0 - found["violation_share"]))
    assert found["cost_per_s"] == pytest.approx(2.0)


DOCUMENT = Path(__file__).parents[3] / "docs" / "infaas.md"


def test_document_says_what_the_committed_results_say() -> None:
    rows = rows_of(published_claims()).splitlines()[2:]
    assert rows
    assert [row for row in rows if row not in DOCUMENT.read_text(encoding="utf-8").splitlines()] == [], "make report-infaas"


def test_simulated_claims_say_that_they_are_simulated() -> None:
    served = [claim for claim in published_claims() if claim.where.startswith(("Figure 5", "Figure 6"))]
    assert len(served) > 10
    assert all(claim.found.startswith("simulated: ") for claim in served if claim.verdict != "not measured")


def test_plans_for_table_2_stand_beside_each_variant_alone() -> None:
    found = configured(table_2_variants(), 1000.0, 0.3)
    assert (found.exact.cost_per_s, found.greedy.cost_per_s) == (22.0, 22.0)
    assert sorted(found.alone.values()) == [30.0, 32.0, 200.0]
    strict = configured(table_2_variants(), 10.0, 0.05)
    assert sorted(strict.alone.values()) == [3.0, 16.0], "a variant that takes 200 ms does not meet 50"


@pytest.mark.parametrize(("value", "paper"), [(1.06, 1.1), (1.626, 1.63), (3.0, 3.0), (2.96, 3.0)])
def test_value_reaches_the_papers_to_the_digits_that_it_gives(value: float, paper: float) -> None:
    assert reaches(value, paper)
    assert not reaches(value - 0.6, paper)


def test_windows_are_whole_and_have_rates() -> None:
    assert windows([4, 6, 8, 8, 100], 2) == [5.0, 8.0]


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
