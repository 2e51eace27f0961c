"""Queries that accept less accuracy than they wish, on machines that are too small for the wish: simulated.

    python -m benchmarks.degrading [--quick]

220 s of Twitter mapped to 10 to 60, 120 or 250 queries per second, which wish the accuracy of ResNeXt-50 (0.776) within 1 s and
accept that of ResNet-18 (0.698). Three ResNets' variants of Table 6 may run on four workers of eight CPU cores each, and no
further ones. Everything is simulated by `benchmarks.simulation.variant_simulation`, with the policies that applications have; the
numbers do not depend on the machine. The seeds draw the catalog and each query's time.
"""

from __future__ import annotations

from functools import partial

from benchmarks.infaas_loads import DAY_MODELS, HOUR_START_S, LEAST_RPS, MODELS_S, QUICK_S, mapped, twitter
from benchmarks.programs import Pace, start, step
from benchmarks.report import Figure, measured, write
from benchmarks.simulation.variant_catalogs import table_6_variants
from benchmarks.simulation.variant_simulation import QueryKind, SimulatedApplication, System, simulate_application
from benchmarks.simulation.variant_workers import Cluster
from gnomon_autoscaler.policies.infaas.greedy import GreedyState, decide
from gnomon_autoscaler.policies.infaas.policy import FloorState, decide_with_floors
from gnomon_core.variants import CPU, Query
from gnomon_simulator.events import stream

PEAKS_RPS = (60.0, 120.0, 250.0)
WORKERS = 4
WISHED, FLOOR, LATENCY_S = 0.775, 0.69, 1.0
SEEDS = (1, 2, 3)
POLICY = System("infaas", partial(decide_with_floors, decide), FloorState(GreedyState()), scales_workers=False)


def main(pace: Pace) -> None:
    figures: list[Figure] = []
    for peak_rps in PEAKS_RPS:
        for name, floor in (("without a floor", None), ("with a floor", FLOOR)):
            step(f"{peak_rps:.0f} queries per second, {name}")
            key = f"simulated {peak_rps:.0f}/s: {name}"
            runs = [simulated(peak_rps, floor, seed, quick=pace.quick) for seed in SEEDS]
            figures += [
                measured(f"{key}, violations", [100.0 * run.violation_share for run in runs], "%"),
                measured(f"{key}, degraded", [100.0 * run.degraded / run.queries for run in runs], "%"),
                measured(f"{key}, starts", [float(run.starts) for run in runs], ""),
            ]
    write("degrading", figures, repeats=len(SEEDS), packages=("gnomon", "numpy"), folder=pace.results)


def simulated(peak_rps: float, floor: float | None, seed: int, *, quick: bool) -> SimulatedApplication:
    """One run of the load, with queries that accept this floor."""
    variants = [variant for variant in table_6_variants(stream(seed, "catalog")) if variant.architecture in DAY_MODELS]
    kinds = (QueryKind(Query(LATENCY_S, WISHED, accuracy_floor=floor), 1.0),)
    load = mapped(twitter().slice(HOUR_START_S, MODELS_S), LEAST_RPS, peak_rps)
    load = load.slice(0.0, QUICK_S) if quick else load
    return simulate_application(variants, kinds, load, POLICY, cluster=Cluster({CPU: WORKERS}, WORKERS), seed=seed)


if __name__ == "__main__":
    start(main, __doc__)
