"""INFaaS's evaluation in virtual time: variants of models against systems whose developer has fixed one variant (section 6).

    python -m benchmarks.infaas [--quick] [--afresh] [--seeds N] [PART…]     resnet50, models, hour, day: all by default

Everything is simulated: `benchmarks.simulation.variant_simulation` serves the queries with the policies that applications have.
Nothing is executed, and the numbers do not depend on the machine. There are three seeds, which draw the catalog's further
variants, the order of the cold models, and every query's time and kind. Results are kept in .cache/benchmarks until the code
changes that decides them, so that an interrupted run goes on where it was; --afresh forgets them.

`infaas_loads` says which loads, catalogs and systems there are. Each part has a file of results: `infaas_resnet50.json` has
Table 3 and the patterns of 6.2, `infaas_models.json` is 6.1.

**Figures.** Throughput is queries per second answered within the objective; all others are violations. Where a baseline has a
share v of violations, no throughput is more than 1 / (1 − v) times its own: the figures say so. Cost is the integral of the
running instances' costs, as in 6.2, `worker_cost` that of the workers, as in 6.1. The goals, 1.3 times the throughput and 1.6
times fewer violations at half of the cost, are for `infaas` against `clipper` (for the day `clipper_peak`) and `sm`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.infaas_loads import LOADS, PATTERNS, MakeCase
from benchmarks.programs import Pace, ended_well, pace_of, pace_parser, step
from benchmarks.report import Figure, ResultCache, measured, write
from benchmarks.simulation.variant_catalogs import table_2_variants
from benchmarks.simulation.variant_simulation import SimulatedApplication, simulate_application
from gnomon_autoscaler.policies.infaas import exact, greedy
from gnomon_autoscaler.policies.infaas.problem import Options
from gnomon_core.variant_scaling import ApplicationObservation, Demand, VariantMember

SOURCES = (
    "benchmarks/infaas_baselines.py",
    "benchmarks/infaas_loads.py",
    "autoscaler/gnomon_autoscaler/policies/infaas",
    "core/gnomon_core/variant_scaling.py",
    "core/gnomon_core/variants.py",
    "gateway-plugin/gnomon_gateway/variants",
    "benchmarks/simulation/variant_simulation.py",
    "benchmarks/simulation/variant_workers.py",
    "benchmarks/simulation/variant_catalogs.py",
)
SEEDS = (1, 2, 3)
PARTS: Mapping[str, tuple[str, ...]] = {"resnet50": tuple(PATTERNS), "models": ("models",), "hour": ("hour",), "day": ("day",)}
TABLE_3 = ((10.0, 0.3, 2.0), (10.0, 0.05, 3.0), (1000.0, 0.3, 22.0))
THROUGHPUT, VIOLATIONS, COST = 1.3, 1.6, 0.5

Summary = dict[str, float]


def main(pace: Pace, parts: Sequence[str] = (), *, afresh: bool = False, seeds: Sequence[int] = SEEDS) -> None:
    kept = ResultCache("infaas", SOURCES)
    if afresh:
        kept.forget()
    seeds = seeds[:1] if pace.quick else seeds
    for part in parts or PARTS:
        figures = table_3() if part == "resnet50" else []
        for load in PARTS[part]:
            found: dict[str, list[Summary]] = {}
            for seed in seeds:
                for system, summary in summaries(load, LOADS[load], seed, kept, quick=pace.quick):
                    found.setdefault(system, []).append(summary)
            figures += patterns_figures(load, found) if load in PATTERNS else figures_of(load, found)
        write(f"infaas_{part}", figures, repeats=len(seeds), packages=("gnomon", "numpy", "scipy"), folder=pace.results)


def summaries(name: str, make: MakeCase, seed: int, kept: ResultCache, *, quick: bool) -> Iterator[tuple[str, Summary]]:
    """The result of each system for a load and a seed."""
    case = make(seed, quick=quick)
    for system, cluster in case.systems:
        key = f"{name}/{system.name}/{seed}{'/quick' if quick else ''}"
        summary: Summary | None = kept.get(key)
        if summary is None:
            step(f"{name}: {system.name}, seed {seed}")
            summary = summary_of(simulate_application(case.variants, case.kinds, case.load, system, cluster=cluster, seed=seed))
            kept.keep(key, summary)
        yield system.name, summary


def summary_of(result: SimulatedApplication) -> Summary:
    return {
        "queries": result.queries,
        "violation_share": result.violation_share,
        "throughput_rps": result.goodput_rps,
        "cost_per_s": result.cost_per_s,
        "worker_cost_per_s": result.worker_cost / result.duration_s,
        "p99_s": result.percentile_s(99.0),
        "starts": result.starts,
    }


def table_3() -> list[Figure]:
    """Table 3 from Table 2, by the program and by the heuristic: the costs in $/s."""
    figures = []
    options = Options(slack=1.0, late_share=None)
    for load_rps, latency_s, cost in TABLE_3:
        members = tuple(VariantMember(variant) for variant in table_2_variants())
        observation = ApplicationObservation(0.0, "resnet50", members, (Demand(load_rps, latency_s),))
        for policy, plan in (
            ("exact", exact.solve(observation, options)),
            ("greedy", greedy.decide(observation, greedy.GreedyState(), options)[0]),
        ):
            key = f"table_3_{load_rps:.0f}_rps_{latency_s * 1e3:.0f}_ms_{policy}"
            figures.append(measured(key, [plan.cost_per_s], "$/s", at_most=cost, detail=plan.reason))
    return figures


# Figures


def figures_of(load: str, found: Mapping[str, Sequence[Summary]]) -> list[Figure]:
    """Each system's figures, and INFaaS's as ratios to each baseline, seed by seed."""
    figures = []
    for system, runs in found.items():
        key = f"simulated {load}: {system}"
        queries = statistics.fmean(run["queries"] for run in runs)
        figures += [
            measured(
                f"{key}, violations", [100.0 * run["violation_share"] for run in runs], "%", detail=f"{queries:.0f} queries"
            ),
            measured(f"{key}, throughput", _values(runs, "throughput_rps"), "1/s", detail=f"P99 {_mean(runs, 'p99_s'):.3g} s"),
            measured(f"{key}, cost", _values(runs, "cost_per_s"), "$/s", detail=f"{_mean(runs, 'starts'):.0f} starts"),
            measured(f"{key}, worker_cost", _values(runs, "worker_cost_per_s"), "$/s"),
        ]
    for system in (name for name in found if name.startswith("infaas")):
        for baseline in ("clipper" if "clipper" in found else "clipper_peak", "sm"):
            figures += compared(load, system, baseline, list(zip(found[system], found[baseline], strict=True)))
    return figures


def compared(load: str, system: str, baseline: str, pairs: Sequence[tuple[Summary, Summary]]) -> list[Figure]:
    """A system's figures as ratios to a baseline's, seed by seed; with goals for the system that applications have."""
    goals = system == "infaas"
    key = f"simulated {load}: {system} ÷ {baseline}"
    most = statistics.fmean(1.0 / max(1e-9, 1.0 - theirs["violation_share"]) for _, theirs in pairs)
    ceiling = f"at most {most:.4g} is possible: all queries in time"
    fewer = [ratio(theirs["violation_share"], our["violation_share"]) for our, theirs in pairs]
    return [
        measured(
            f"{key}, throughput", ratios(pairs, "throughput_rps"), "x", at_least=THROUGHPUT if goals else None, detail=ceiling
        ),
        measured(f"simulated {load}: {baseline} ÷ {system}, violations", fewer, "x", at_least=VIOLATIONS if goals else None),
        measured(f"{key}, cost", ratios(pairs, "cost_per_s"), "x", at_most=COST if goals else None),
        measured(f"{key}, worker_cost", ratios(pairs, "worker_cost_per_s"), "x"),
    ]


def patterns_figures(load: str, found: Mapping[str, Sequence[Summary]]) -> list[Figure]:
    """Each system's throughput and cost, as in Figure 6."""
    figures = []
    for system, runs in found.items():
        key = f"simulated {load}: {system}"
        asked = statistics.fmean(run["throughput_rps"] / max(1e-9, 1.0 - run["violation_share"]) for run in runs)
        said = f"violations {100.0 * _mean(runs, 'violation_share'):.3g} %, of {asked:.4g} queries/s"
        figures += [
            measured(f"{key}, throughput", _values(runs, "throughput_rps"), "1/s", detail=said),
            measured(f"{key}, cost", _values(runs, "cost_per_s"), "$/s"),
        ]
    for baseline in ("clipper_gpu", "sm_gpu"):
        pairs = list(zip(found[baseline], found["infaas"], strict=True))
        figures.append(measured(f"simulated {load}: {baseline} ÷ infaas, cost", ratios(pairs, "cost_per_s"), "x"))
    return figures


def _values(runs: Sequence[Summary], name: str) -> list[float]:
    return [run[name] for run in runs]


def _mean(runs: Sequence[Summary], name: str) -> float:
    return statistics.fmean(_values(runs, name))


def ratios(pairs: Sequence[tuple[Summary, Summary]], name: str) -> list[float]:
    return [ratio(our[name], theirs[name]) for our, theirs in pairs]


def ratio(first: float, second: float) -> float:
    """The quotient; where both are 0 they are equal."""
    return 1.0 if first == second else first / max(second, 1e-9)


if __name__ == "__main__":
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--afresh", action="store_true", help="forget earlier results")
    parser.add_argument("--seeds", type=int, choices=SEEDS, default=len(SEEDS), help="how many seeds; a day takes minutes each")
    parser.add_argument("parts", nargs="*", choices=(*PARTS, []), metavar="PART", help=", ".join(PARTS))
    asked = parser.parse_args()
    ended_well(lambda: main(pace_of(asked), asked.parts, afresh=asked.afresh, seeds=SEEDS[: asked.seeds]))
