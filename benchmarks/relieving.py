"""An Overloaded variant is relieved: by the plan alone, by instances for its last period's load, and with Shadows meanwhile.

    python -m benchmarks.relieving [--quick]

Bursts of 1.6 and 3 times what one instance on one core serves, of 10 s each, five of them, after 0.6 times it; variants of one
and two cores of a model, on one machine of 8 cores. Latencies, load times and pairs are those of the repository's profiles; the
objective is three times the largest batch. Bodies start as the profile says, and in 1 s and 4.6 s beside it: pods take that long.
Everything is simulated by `benchmarks.simulation.variant_simulation`; the numbers do not depend on the machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.programs import ROOT, Pace, start, step
from benchmarks.report import Figure, measured, write
from benchmarks.simulation.variant_simulation import QueryKind, SimulatedPair, System, simulate_application
from benchmarks.simulation.variant_workers import Cluster, WorkerKind
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge
from gnomon_autoscaler.policies.infaas.greedy import GreedyState, decide
from gnomon_autoscaler.policies.infaas.policy import OverloadState, decide_in_overload
from gnomon_core.profiles import ModelProfile
from gnomon_core.settings import Settings
from gnomon_core.variants import CORES, CPU, MEMORY_BYTES, Query, Variant
from gnomon_simulator.traces import Trace

MODELS = ("efficientnet-lite0", "resnet50", "vgg16", "vit_b_16")
STARTS_S: tuple[float | None, ...] = (None, 1.0, 4.6)
PEAKS = (1.6, 3.0)
CALM, CALM_S, BURST_S, BURSTS = 0.6, 30, 10, 5
MAX_BATCH, OBJECTIVE = 8, 3.0
SEEDS = (1, 2, 3)
MACHINE = Cluster({CPU: 1}, 1, (WorkerKind(CPU, {CORES: 8.0, MEMORY_BYTES: 64.0 * 2**30}, 1.0),))
PLAN = System("plan", decide, GreedyState(), scales_workers=False)
OVERLOAD = System("overload", partial(decide_in_overload, decide), OverloadState(GreedyState()), scales_workers=False)


@dataclass(frozen=True, slots=True)
class Model:
    """A model's variants with their pairs, and the objective of its queries."""

    variants: Sequence[Variant]
    pairs: Mapping[str, SimulatedPair]
    objective_s: float


def main(pace: Pace) -> None:
    figures: list[Figure] = []
    for name in MODELS[:1] if pace.quick else MODELS:
        for start_s in STARTS_S:
            model = model_of(name, start_s)
            step(f"{name}, Bodies in {model.variants[0].load_s:.2g} s")
            for peak in PEAKS:
                figures += compared(f"{name}, {start_s or 'own'} s, x{peak:g}", model, peak)
    write("relieving", figures, repeats=len(SEEDS), packages=("gnomon", "numpy"), folder=pace.results)


def compared(key: str, model: Model, peak: float) -> list[Figure]:
    """Violations, cores and memory of each system under bursts of that height."""
    one_rps = model.variants[0].saturation_rps
    load = Trace(1.0, tuple([CALM * one_rps] * CALM_S + [peak * one_rps] * BURST_S) * BURSTS)
    kinds = (QueryKind(Query(latency_s=model.objective_s), 1.0),)
    figures = []
    for name, system, pairs in (("plan", PLAN, {}), ("overload", OVERLOAD, {}), ("shadows", OVERLOAD, model.pairs)):
        runs = [
            simulate_application(model.variants, kinds, load, system, cluster=MACHINE, seed=seed, pairs=pairs) for seed in SEEDS
        ]
        figures += [
            measured(f"simulated {key}: {name}, violations", [100.0 * run.violation_share for run in runs], "%"),
            measured(f"simulated {key}: {name}, cores", [run.cost_per_s for run in runs], ""),
            measured(f"simulated {key}: {name}, memory", [run.memory_byte_s / run.duration_s / 2**20 for run in runs], "MiB"),
        ]
    return figures


def model_of(name: str, start_s: float | None) -> Model:
    """A model of the repository whose Bodies start in `start_s`; None as its profile says."""
    profile = ModelProfile.from_json(json.loads((ROOT / "profiles" / f"{name}.json").read_text(encoding="utf-8")))
    variants, pairs, objective_s = list[Variant](), dict[str, SimulatedPair](), 0.0
    for cores in (1, 2):
        seconds = {size: profile.whole.at(cores, size) or 0.0 for size in (1, 2, 4, MAX_BATCH)}
        objective_s = objective_s or OBJECTIVE * seconds[MAX_BATCH]
        settings = Settings(slo_s=objective_s, max_batch=MAX_BATCH, max_cores=cores, cores=cores)
        known = Knowledge(profile, settings, Options())
        load_s = profile.body_load_s("shared") if start_s is None else start_s
        memory_bytes = profile.memory_bytes(known.parameter_bytes)
        rate_rps = MAX_BATCH / seconds[MAX_BATCH]
        variant = Variant(
            f"{name}/{cores}",
            name,
            "program",
            "fp32",
            cores,
            MAX_BATCH,
            0.8,
            load_s,
            seconds,
            memory_bytes,
            rate_rps,
            float(cores),
        )
        variants.append(variant)
        best = max(known.pairings.ranked(cores, cores), key=lambda pairing: pairing.rate_rps, default=None)
        together = None if best is None else known.rates.pair(cores, best.pair)
        if best is not None and together is not None:
            # Weights are shared with the Body, so that a Shadow's memory is its own buffers and interpreter.
            loads_s = known.pairings.load_s(best.parameter_bytes)
            pairs[variant.id] = SimulatedPair(together.latency_s, loads_s, profile.overhead_bytes)
    return Model(variants, pairs, objective_s)


if __name__ == "__main__":
    start(main, __doc__)
