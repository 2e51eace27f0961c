"""The benchmark of INFaaS compares what it says: Table 3 is exact, loads have the stated rates, ratios point the right way."""

import pytest

from benchmarks.infaas import Summary, compared, summary_of, table_3
from benchmarks.infaas_loads import LOADS, MOST_RPS, POPULAR, mapped
from gnomon_core.variants import CPU
from gnomon_gateway.variants.selection import satisfies
from gnomon_simulator.traces import Trace
from gnomon_simulator.variant_catalogs import GPU
from gnomon_simulator.variant_simulation import simulate_application


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
