"""The time to find the cheapest variants for a load, and the cost of the heuristic beside them.

    python -m benchmarks.variant_scaling [--quick]

**Time.** 50 and 100 architectures of 50 variants each, made up within the ranges of INFaaS, each architecture with a load and an
objective of its own. Instances run that suit another load, so that variants are also unloaded. `tight`: of every resource type
there is as much as a plan uses for which accelerators cost half as much again, so that architectures compete for them and some
have to do without. The time includes building the program. A solution counts as proven within 0.1 % of the cheapest. The paper's
Gurobi took 23 s for 50 architectures and 50 s for 100 (section 4.2.1); machine, variants and resources are not said.

**Cost.** 500 random loads, each with a catalog of its own, every second one with what runs for another load: the objective of the
heuristic, and of the heuristic as it is printed, against the program's. Then with two to four demands that share variants, and
with one demand and tight resources, where the heuristic may also serve less than the program does.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from benchmarks.programs import Pace, start, step
from benchmarks.report import Figure, measured, write
from benchmarks.simulation.variant_catalogs import made_up_variants
from gnomon_autoscaler.policies.infaas.exact import solve
from gnomon_autoscaler.policies.infaas.greedy import cover, printed
from gnomon_autoscaler.policies.infaas.problem import ROUNDING, Options, Problem
from gnomon_core.variant_scaling import ApplicationObservation, Demand, VariantMember
from gnomon_core.variants import Variant

Result = TypeVar("Result")

ARCHITECTURES = {50: 0.5, 100: 1.0}
"""Seconds within which the solution has to be proven, by the number of architectures."""
GUROBI_S = {50: 23, 100: 50}
VARIANTS = 50
TIGHT = 1.5
PROVEN = 1e-3
LOADS, QUICK_LOADS = 500, 40
COST_GOAL = 0.1
GENEROUS = Options(time_limit_s=20.0)  # to see how long a proof takes where it takes longer


def main(pace: Pace) -> None:
    figures: list[Figure] = []
    for architectures, goal_s in ARCHITECTURES.items():
        for tight in (False, True):
            step(f"{architectures} architectures{', tight resources' if tight else ''}")
            figures += times(architectures, goal_s, pace, tight=tight)
    for name, demands, dearer in (("one_demand", 1, None), ("several_demands", 4, None), ("tight", 1, TIGHT)):
        step(f"cost: {name}")
        figures += costs(name, demands, dearer, QUICK_LOADS if pace.quick else LOADS)
    write("variant_scaling", figures, repeats=pace.repeats, packages=("gnomon", "numpy", "scipy"), folder=pace.results)


def times(architectures: int, goal_s: float, pace: Pace, *, tight: bool) -> list[Figure]:
    """The times of the program and of the heuristic."""
    exact_s, greedy_s, gaps, lacking = [], [], [], []
    for repeat in range(pace.repeats):
        observation = of_architectures(architectures, repeat, tight=tight)
        seconds, exact = timed(partial(solve, observation, GENEROUS))
        exact_s.append(seconds)
        seconds, instances = timed(partial(_covered, observation))
        greedy_s.append(seconds)
        gaps.append(exact.gap or 0.0)
        problem = Problem(observation, GENEROUS)
        lacking.append((sum(problem.unmet_rps(instances)) - exact.shortfall_rps) / sum(problem.needs_rps))
    key = f"{architectures}_architectures{'_tight' if tight else ''}"
    proven = sum(gap <= PROVEN for gap in gaps)
    said = f"{proven} of {len(gaps)} proven, largest gap {max(gaps):.3%}; the paper's Gurobi: {GUROBI_S[architectures]} s"
    lacks = f"serves {statistics.fmean(lacking):.2%} of the load less than the program" if tight else ""
    return [
        measured(f"exact_{key}", exact_s, "s", at_most=goal_s, detail=said),
        measured(f"greedy_{key}", greedy_s, "s", at_most=1.0, detail=lacks),
    ]


def _covered(observation: ApplicationObservation) -> list[int]:
    return cover(Problem(observation, GENEROUS))


def costs(name: str, most_demands: int, dearer: float | None, loads: int) -> list[Figure]:
    """The heuristic's cost over the cheapest plan's, and the printed heuristic's when started from no instances."""
    ratios: list[float] = []
    printed_ratios: list[float] = []
    lacking: list[float] = []
    for number in range(loads):
        observation = of_random(random.Random(number), most_demands, running_before=number % 2 == 1, dearer=dearer)
        problem = Problem(observation, Options())
        load = sum(problem.needs_rps)
        exact = solve(observation)
        cheapest = exact.objective + problem.cost_per_s(problem.running)
        for heuristic, found in ((cover, ratios), (printed, printed_ratios)):
            if heuristic is printed and any(problem.running):
                continue
            instances = heuristic(problem)
            lack = (sum(problem.unmet_rps(instances)) - exact.shortfall_rps) / load
            if lack <= ROUNDING and cheapest > 0.0:
                found.append((problem.objective(instances) + problem.cost_per_s(problem.running)) / cheapest - 1.0)
            elif lack > ROUNDING and heuristic is cover:
                lacking.append(lack)
    goal = COST_GOAL if dearer is None and most_demands == 1 else None
    met = "" if goal is None else "met" if max(ratios) <= goal else "missed"
    less = f"; in {len(lacking)} others it serves less, {statistics.fmean(lacking):.1%} of the load" if lacking else ""
    comparison = "" if goal is None else "<="
    as_printed = f"at most {max(printed_ratios):.3g}; in {len(printed_ratios)} of {(loads + 1) // 2} it serves as much"
    return [
        Figure(f"dearer_{name}_most", max(ratios), "relative", goal, comparison, met, f"{len(ratios)} loads{less}"),
        Figure(f"dearer_{name}_mean", statistics.fmean(ratios), "relative"),
        Figure(f"dearer_as_printed_{name}_mean", statistics.fmean(printed_ratios), "relative", detail=as_printed),
    ]


def of_architectures(count: int, seed: int, *, tight: bool) -> ApplicationObservation:
    """An observation of `count` architectures, each with a load, an objective and the instances of an earlier load."""
    rng = random.Random(seed)
    variants = made_up_variants(count * VARIANTS, rng, architectures=count)
    before, now = (
        tuple(
            Demand(10 ** rng.uniform(0.0, 3.0), latency_s=objective_of(variants, name, rng), architecture=name)
            for name in sorted({variant.architecture for variant in variants})
        )
        for _ in range(2)
    )
    observation = running(variants, before)
    observation = replace(observation, demands=now)
    return bounded(observation, TIGHT) if tight else observation


def objective_of(variants: Sequence[Variant], architecture: str, rng: random.Random) -> float:
    """An objective that at least a quarter of an architecture's variants meets."""
    every = sorted(variant.inference_s for variant in variants if variant.architecture == architecture)
    return every[rng.randrange(len(every) // 4, len(every))]


def of_random(rng: random.Random, most_demands: int, *, running_before: bool, dearer: float | None) -> ApplicationObservation:
    """A random catalog and random demands, with nothing or with what runs for other demands."""
    architectures = rng.randint(1, 5)
    variants = made_up_variants(rng.randint(3, 40) * architectures, rng, architectures=architectures)
    count = 1 if most_demands == 1 else rng.randint(2, most_demands)
    before, now = (tuple(demand_like(rng.choice(variants), rng) for _ in range(count)) for _ in range(2))
    observation = running(variants, before if running_before else ())
    observation = replace(observation, demands=now)
    return observation if dearer is None else bounded(observation, dearer)


def demand_like(variant: Variant, rng: random.Random) -> Demand:
    """A demand that at least this variant can serve."""
    return Demand(
        10 ** rng.uniform(0.0, 3.5),
        latency_s=rng.choice((None, variant.inference_s * rng.uniform(1.0, 3.0))),
        accuracy=rng.choice((None, variant.accuracy)),
        architecture=rng.choice(("", variant.architecture)),
    )


def running(variants: Sequence[Variant], demands: tuple[Demand, ...]) -> ApplicationObservation:
    """The application with the instances that the heuristic chooses for these demands."""
    observation = ApplicationObservation(0.0, "made-up", tuple(VariantMember(variant) for variant in variants), demands)
    instances = cover(Problem(observation, Options()))
    members = tuple(VariantMember(variant, count, count) for variant, count in zip(variants, instances, strict=True))
    return replace(observation, members=members)


def bounded(observation: ApplicationObservation, dearer: float) -> ApplicationObservation:
    """The observation with as much of each resource type as a plan uses for which accelerators are dearer: fewer than wanted."""
    members = tuple(
        replace(
            member,
            variant=replace(member.variant, cost_per_s=member.variant.cost_per_s * (dearer if member.variant.devices else 1.0)),
        )
        for member in observation.members
    )
    problem = Problem(observation, Options())
    instances = cover(Problem(replace(observation, members=members), Options()))
    used: dict[str, float] = {}
    for member, count in zip(problem.members, instances, strict=True):
        for kind, amount in member.variant.resources.items():
            used[kind] = used.get(kind, 0.0) + amount * count
    return replace(observation, capacity={kind: amount for kind, amount in used.items() if amount})


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """The seconds that work takes, and its result."""
    begun_s = time.perf_counter()
    result = work()
    return time.perf_counter() - begun_s, result


if __name__ == "__main__":
    start(main, __doc__)
