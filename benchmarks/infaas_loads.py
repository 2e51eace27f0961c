"""The loads of `benchmarks.infaas`: queries, the variants that may serve them, and the systems that do, with their workers.

**Catalogs.** There are no measured variants on GPUs and Inferentia here. The 175 variants of Table 6 are ResNet50's in Table 2,
in proportion to the networks' published GFLOPs. Loading takes 0.7 to 10 s, by the weights.

**Loads.**

models       section 6.1: 220 s of Twitter mapped to 10 to 1,000 queries per second, for 22 architectures by name. Four have 80 %
             of the load and 50 ms, the others 1.5 times their fastest CPU variant's time, by Zipf.
hour         an hour of Twitter as it was, 50 per second, for the same architectures
day          the whole day as it was: 23.5 h, 4.4 million queries, for three ResNets of different accuracy. Three kinds of
             query, after Table 1, name an accuracy and a latency, and no model.
flat, steady, fluctuating
             section 6.2: ResNet50 within 300 ms, four minutes of 4 per second, of 650 to 700, of 4 with peaks of 80

**Systems.** `clipper` has the paper's 7 GPU workers, and as many CPU workers as hold one instance of each cold model: 9. The
paper has 5, and does not say how many cores an instance has. `clipper_peak` has what the load's highest second needs, which its
developer knows. `sm` begins with `clipper`'s workers, `infaas` with two Inferentia in place of two GPU workers; both add and end
workers. Developers fix GPU variants for popular models and CPU variants for the others, as in 6.1. For the day both baselines
have the variants that serve the highest second at the least cost.

`infaas` is what applications have: queries are shared among the loaded variants by what is ahead of them, and the number of
instances leaves queries no longer to wait than their objective does, but for 5 % of them. `infaas_capacity` has instances for the
capacity alone, with the paper's slack. `infaas_printed` has that as well, and sends the queries of a kind to the cheapest loaded
variant, as in Algorithm 1.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Protocol

from benchmarks import infaas_baselines as baselines
from benchmarks.simulation.variant_catalogs import GPU, INFERENTIA, NETWORKS, table_2_variants, table_6_variants
from benchmarks.simulation.variant_simulation import QueryKind, System, demand_of
from benchmarks.simulation.variant_workers import Cluster
from gnomon_autoscaler.policies.infaas import greedy
from gnomon_autoscaler.policies.infaas.problem import Options
from gnomon_core.variant_scaling import ApplicationObservation, ScalingPlan
from gnomon_core.variants import CPU, Query, Variant
from gnomon_gateway.variants.selection import Rule
from gnomon_simulator.events import stream
from gnomon_simulator.traces import Trace, read_trace

TRACE = Path(__file__).parent / "traces" / "twitter_may25_1s.csv.gz"
POPULAR = ("densenet121", "resnet50", "vgg16", "inceptionv3")
POPULAR_SHARE, POPULAR_SLO_S, COLD_SLO = 0.8, 0.05, 1.5
LEAST_RPS, MOST_RPS = 10.0, 1000.0
HOUR_START_S, HOUR_S, MODELS_S = 74_220.0, 3600.0, 220.0
QUICK_S, QUICK_DAY_S = 60.0, 300.0
SLACK = 1.05
GPU_WORKERS, MOST_WORKERS = 7, 60
DAY_MODELS = ("resnet18", "resnet50", "resnext50")
DAY_KINDS = (
    ("social media", Query(latency_s=1.0, accuracy=0.775), 0.5),
    ("visual guidance", Query(latency_s=0.1, accuracy=0.77), 0.2),
    ("intruder detection", Query(latency_s=0.3, accuracy=0.69), 0.3),
)
PATTERN_S, PATTERN_SLO_S = 240, 0.3


@dataclass(frozen=True, slots=True)
class Case:
    """A load with its kinds of queries, the variants that may serve it, and the systems with their clusters."""

    variants: tuple[Variant, ...]
    kinds: tuple[QueryKind, ...]
    load: Trace
    systems: tuple[tuple[System, Cluster], ...]


class MakeCase(Protocol):
    """A load for a seed."""

    def __call__(self, seed: int, *, quick: bool) -> Case: ...


@cache
def twitter() -> Trace:
    return read_trace(TRACE)


def mapped(load: Trace, least_rps: float, most_rps: float) -> Trace:
    """The trace's shape between two rates."""
    low, high = min(load.counts), max(load.counts)
    factor = (most_rps - least_rps) / (high - low)
    return Trace(load.bin_s, tuple(least_rps + (count - low) * factor for count in load.counts))


def models(seed: int, *, quick: bool) -> Case:
    """Section 6.1: 22 architectures at 10 to 1,000 queries per second."""
    load = mapped(twitter().slice(HOUR_START_S, MODELS_S), LEAST_RPS, MOST_RPS)
    return of_models(seed, load.slice(0.0, QUICK_S) if quick else load, MOST_RPS)


def hour(seed: int, *, quick: bool) -> Case:
    """The load of the 22 architectures for an hour, at the trace's own rate."""
    load = twitter().slice(HOUR_START_S, HOUR_S)
    return of_models(seed, load.slice(0.0, QUICK_S) if quick else load, max(load.counts))


def of_models(seed: int, load: Trace, peak_rps: float) -> Case:
    """The 22 architectures, each asked for by name."""
    rng = stream(seed, "catalog")
    variants = table_6_variants(rng)
    kinds = model_kinds(variants, rng)
    clipper = developers_choice(variants, kinds, baselines.cost_per_sample)
    quickest = developers_choice(variants, kinds, baselines.single_sample_s)
    peaks = [(variant, peak_rps * kind.share) for variant, kind in zip(clipper, kinds, strict=True)]
    for_peak = baselines.preloaded(peaks, SLACK)
    cold = sum(variant.hardware == CPU for variant in clipper)
    given = {CPU: math.ceil(cold / 2), GPU: GPU_WORKERS}
    capacity = {"cores": 8.0 * given[CPU] + given[GPU], GPU: float(given[GPU])}
    at_first = {CPU: given[CPU], GPU: GPU_WORKERS - 2, INFERENTIA: 2}
    systems = (
        (clipper_plus("clipper", clipper, baselines.preloaded(peaks, SLACK, capacity)), Cluster(given, MOST_WORKERS)),
        (clipper_plus("clipper_peak", clipper, for_peak), Cluster(workers_for(variants, for_peak), MOST_WORKERS)),
        (sagemaker_plus("sm", quickest), Cluster(given, MOST_WORKERS)),
        *((system, Cluster(at_first, MOST_WORKERS)) for system in infaas_systems()),
    )
    return Case(variants, kinds, load, systems)


def model_kinds(variants: Sequence[Variant], rng: random.Random) -> tuple[QueryKind, ...]:
    """Four popular models with an objective of 50 ms, and cold ones by Zipf with 1.5 times their fastest CPU variant's time."""
    cold = [network.name for network in NETWORKS if network.name not in POPULAR]
    rng.shuffle(cold)
    total = sum(1.0 / rank for rank in range(1, len(cold) + 1))
    fastest = {
        name: min(
            baselines.single_sample_s(variant) for variant in variants if variant.architecture == name and variant.hardware == CPU
        )
        for name in cold
    }
    popular = [QueryKind(Query(POPULAR_SLO_S, architecture=name), POPULAR_SHARE / len(POPULAR)) for name in POPULAR]
    return (
        *popular,
        *(
            QueryKind(Query(COLD_SLO * fastest[name], architecture=name), (1.0 - POPULAR_SHARE) / rank / total)
            for rank, name in enumerate(cold, 1)
        ),
    )


def developers_choice(
    variants: Sequence[Variant], kinds: Sequence[QueryKind], prefer: baselines.Preference
) -> tuple[Variant, ...]:
    """One variant for each model: on a GPU for popular ones, on CPUs for the others."""
    return tuple(
        baselines.fixed_variant(variants, demand_of(kind.query), prefer, GPU if kind.query.architecture in POPULAR else CPU)
        for kind in kinds
    )


def day(seed: int, *, quick: bool) -> Case:
    """The whole day: three kinds of query that name no model, for three ResNets."""
    load = twitter().slice(0.0, QUICK_DAY_S) if quick else twitter()
    variants = tuple(variant for variant in table_6_variants(stream(seed, "catalog")) if variant.architecture in DAY_MODELS)
    kinds = tuple(QueryKind(query, share) for _, query, share in DAY_KINDS)
    peak_rps = max(twitter().counts)
    fixed = tuple(
        baselines.fixed_variant(variants, demand_of(kind.query), partial(cost_of_peak, peak_rps * kind.share)) for kind in kinds
    )
    peaks: dict[str, float] = {}
    for variant, kind in zip(fixed, kinds, strict=True):
        peaks[variant.id] = peaks.get(variant.id, 0.0) + peak_rps * kind.share
    counts = baselines.preloaded([(variant, peaks[variant.id]) for variant in variants if variant.id in peaks], SLACK)
    workers = workers_for(variants, counts)
    at_first = {CPU: 2, GPU: 1, INFERENTIA: 1}
    systems = (
        (clipper_plus("clipper_peak", fixed, counts), Cluster(workers, MOST_WORKERS)),
        (sagemaker_plus("sm", fixed), Cluster(workers, MOST_WORKERS)),
        (infaas_systems()[0], Cluster(at_first, MOST_WORKERS)),
    )
    return Case(variants, kinds, load, systems)


def cost_of_peak(peak_rps: float, variant: Variant) -> float:
    """The cost of the instances that serve a highest load."""
    return math.ceil(SLACK * peak_rps / variant.saturation_rps) * variant.cost_per_s


def pattern(rates_rps: Sequence[float], seed: int, *, quick: bool) -> Case:
    """Section 6.2: one architecture, ResNet50, with a pattern of load."""
    variants = tuple(variant for variant in table_6_variants(stream(seed, "catalog")) if variant.architecture == "resnet50")
    variants += tuple(variant for variant in table_2_variants() if variant.id not in {other.id for other in variants})
    load = Trace(1.0, tuple(rates_rps[: int(QUICK_S)] if quick else rates_rps))
    kinds = (QueryKind(Query(PATTERN_SLO_S), 1.0),)
    demand = demand_of(kinds[0].query)
    on_cpu = baselines.fixed_variant(variants, demand, baselines.single_sample_s, CPU)
    batches = baselines.fixed_variant(variants, demand, baselines.cost_per_sample, GPU)
    single = baselines.fixed_variant(variants, demand, baselines.single_sample_s, GPU)
    cluster = Cluster({CPU: 1, GPU: 4, INFERENTIA: 2}, MOST_WORKERS)
    systems = (
        clipper_plus("clipper_cpu", (on_cpu,), {on_cpu.id: 2}),
        clipper_plus("clipper_gpu", (batches,), {batches.id: 1}),
        sagemaker_plus("sm_cpu", (on_cpu,)),
        sagemaker_plus("sm_gpu", (single,)),
        *infaas_systems(),
    )
    return Case(variants, kinds, load, tuple((replace(system, scales_workers=False), cluster) for system in systems))


def fluctuating() -> tuple[float, ...]:
    """4 queries per second, and 80 between seconds 60 and 90 and between 150 and 180."""
    return tuple(80.0 if 60 <= second < 90 or 150 <= second < 180 else 4.0 for second in range(PATTERN_S))


PATTERNS: Mapping[str, tuple[float, ...]] = {
    "flat": (4.0,) * PATTERN_S,
    "steady": tuple(650.0 + 50.0 * second / PATTERN_S for second in range(PATTERN_S)),
    "fluctuating": fluctuating(),
}
LOADS: Mapping[str, MakeCase] = {
    **{name: partial(pattern, rates_rps) for name, rates_rps in PATTERNS.items()},
    "models": models,
    "hour": hour,
    "day": day,
}


# Systems


def clipper_plus(name: str, fixed: Sequence[Variant], counts: Mapping[str, int]) -> System:
    return System(name, baselines.clipper, dict(counts), tuple(variant.id for variant in fixed), scales_workers=False)


def sagemaker_plus(name: str, fixed: Sequence[Variant]) -> System:
    names = tuple(variant.id for variant in fixed)
    return System(name, partial(_sagemaker, names), baselines.ReplicaState(), names)


def _sagemaker(
    names: tuple[str, ...], observation: ApplicationObservation, state: baselines.ReplicaState
) -> tuple[ScalingPlan, baselines.ReplicaState]:
    return baselines.sagemaker(observation, state, names)


def infaas_systems() -> tuple[System, ...]:
    capacity = partial(greedy.decide, options=Options(late_share=None))
    return (
        System("infaas", greedy.decide, greedy.GreedyState()),
        System("infaas_capacity", capacity, greedy.GreedyState()),
        System("infaas_printed", capacity, greedy.GreedyState(), rule=Rule.PRINTED),
    )


def workers_for(variants: Sequence[Variant], counts: Mapping[str, int]) -> dict[str, int]:
    """The workers that hold these instances."""
    by_id = {variant.id: variant for variant in variants}
    found = {
        CPU: math.ceil(sum(by_id[name].cores * count for name, count in counts.items() if by_id[name].hardware == CPU) / 8),
        GPU: sum(count for name, count in counts.items() if by_id[name].hardware == GPU),
        INFERENTIA: math.ceil(sum(count for name, count in counts.items() if by_id[name].hardware == INFERENTIA) / 4),
    }
    return {hardware: count for hardware, count in found.items() if count}
