"""The heuristic comes near the cheapest variants, the program keeps its constraints, and no load is given up on the way."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.variant_scaling import of_architectures, of_random
from gnomon_autoscaler.policies.infaas import greedy
from gnomon_autoscaler.policies.infaas.exact import solve
from gnomon_autoscaler.policies.infaas.greedy import GreedyState, cover, decide, mixes, printed
from gnomon_autoscaler.policies.infaas.problem import ROUNDING, Options, Problem
from gnomon_core.variant_scaling import ApplicationObservation, VariantMember


def counts(problem: Problem, by_id: dict[str, int]) -> list[int]:
    return [by_id.get(member.variant.id, 0) for member in problem.members]


def total(problem: Problem, instances: Sequence[int]) -> float:
    return problem.objective(instances) + problem.cost_per_s(problem.running)


@pytest.mark.parametrize("part", range(5))
def test_heuristic_is_within_a_tenth_of_the_cheapest(part: int) -> None:
    """500 random loads in all, each with a random catalog, with nothing and with other instances running."""
    for number in range(100 * part, 100 * part + 100):
        observation = of_random(random.Random(number), 1, running_before=number % 2 == 1, dearer=None)
        problem = Problem(observation, Options())
        plan = solve(observation)
        assert plan.gap == 0.0
        found = cover(problem)
        assert sum(problem.unmet_rps(found)) == plan.shortfall_rps == 0.0
        cheapest = total(problem, counts(problem, dict(plan.instances)))
        assert cheapest <= total(problem, found) * (1 + 1e-6)
        assert total(problem, found) <= 1.1 * cheapest
        assert cheapest <= total(problem, printed(problem)) * (1 + 1e-6)


@pytest.mark.parametrize("dearer", [None, 1.5])
def test_plans_keep_the_constraints(dearer: float | None) -> None:
    """Several demands that share variants; the cheapest plan is no dearer than the heuristic's wherever both serve everything."""
    apart = []
    for number in range(60):
        observation = of_random(random.Random(number), 4, running_before=number % 2 == 1, dearer=dearer)
        problem = Problem(observation, Options())
        exact, found = solve(observation), cover(problem)
        instances = counts(problem, dict(exact.instances))
        assert problem.fits(instances)
        assert problem.fits(found)
        assert exact.shortfall_rps <= sum(problem.unmet_rps(instances)) <= exact.shortfall_rps + 1e-5 * sum(problem.needs_rps)
        if sum(problem.unmet_rps(found)) == exact.shortfall_rps == 0.0:
            assert exact.gap is not None
            assert total(problem, instances) * (1 - exact.gap) <= total(problem, found) * (1 + 1e-6)
            apart.append(total(problem, found) / total(problem, instances) - 1.0)
    assert len(apart) > 20
    assert sum(apart) / len(apart) < 0.05


@pytest.mark.parametrize("literal", [False, True])
def test_ready_instances_suffice_at_every_decision_after_a_change(*, literal: bool) -> None:
    """Loads that change every minute: what is ready serves each one from the loading time on, and ends near the cheapest."""
    apart = []
    for seed in range(12):
        rng = random.Random(seed)
        observation = of_random(rng, 1, running_before=False, dearer=None)
        state, starts = GreedyState(), {}
        for minute in range(4):
            demands = tuple(replace(demand, load_rps=demand.load_rps * rng.uniform(0.3, 2.0)) for demand in observation.demands)
            served = False
            for second in range(60):
                observation = replace(observation, now_s=60.0 * minute + second, demands=demands)
                observation = ready(observation, starts)
                served = served or sufficient(observation, literal=literal)
                assert sufficient(observation, literal=literal) or not served
                plan, state = decide(observation, state, Options(literal=literal))
                observation = carried_out(observation, plan.instances, starts)
            assert served
        problem = Problem(
            replace(observation, members=tuple(replace(member, running=0) for member in observation.members)), Options()
        )
        cost = sum(member.variant.cost_per_s * member.running for member in observation.members)
        apart.append(cost / solve(problem.observation, Options(loading_weight=0.0)).cost_per_s - 1.0)
    assert literal or max(apart) < 0.5


def ready(observation: ApplicationObservation, starts: dict[str, list[float]]) -> ApplicationObservation:
    """The observation with the instances ready that have loaded."""

    def of(member: VariantMember) -> int:
        loading = sum(begun_s + member.variant.load_s > observation.now_s for begun_s in starts.get(member.variant.id, []))
        return max(0, member.running - loading)

    return replace(observation, members=tuple(replace(member, ready=of(member)) for member in observation.members))


def sufficient(observation: ApplicationObservation, *, literal: bool) -> bool:
    """True if the ready instances serve the load itself."""
    problem = Problem(observation, Options(slack=1.0, literal=literal))
    return sum(problem.unmet_rps([member.ready for member in observation.members])) <= ROUNDING


def carried_out(observation: ApplicationObservation, instances: object, starts: dict[str, list[float]]) -> ApplicationObservation:
    """The observation with the planned instances; those that are loaded begin now, those that are unloaded are the newest."""
    assert isinstance(instances, dict)
    members = []
    for member in observation.members:
        wanted = instances.get(member.variant.id, 0)
        begun = starts.setdefault(member.variant.id, [])
        begun += [observation.now_s] * (wanted - member.running)
        del begun[wanted:]
        members.append(replace(member, running=wanted))
    return replace(observation, members=tuple(members))


@pytest.mark.parametrize("steps", [1, 10, 100, 1000])
def test_bound_of_a_search_that_ends_early_is_below_the_cheapest_mix(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(60):
        problem = Problem(of_random(random.Random(number), 1, running_before=False, dearer=None), Options())
        monkeypatch.setattr(greedy, "STEPS", 1_000_000)
        least, complete = mixes(problem, 0, problem.accepted[0], {}, 0.0)
        monkeypatch.setattr(greedy, "STEPS", steps)
        bound, found = mixes(problem, 0, problem.accepted[0], {}, 0.0)
        assert bound <= least * (1 + ROUNDING)
        assert all(total >= least * (1 - ROUNDING) for total, _ in found)
        assert complete
        assert complete[0][0] == pytest.approx(least)


def test_plan_of_searches_that_end_early_is_as_near_to_the_cheapest_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Architectures that compete for resources, whose searches end after few steps or when they are complete."""
    for seed in range(6):
        observation = of_architectures(8, seed, tight=True)
        problem = Problem(observation, Options())
        running_cost = problem.cost_per_s(problem.running)
        monkeypatch.setattr(greedy, "STEPS", 1_000_000)
        complete = solve(observation)
        monkeypatch.setattr(greedy, "STEPS", 40)
        early = solve(observation)
        assert early.gap is not None
        assert (1 - early.gap) * (early.objective + running_cost) <= (complete.objective + running_cost) * (1 + ROUNDING)
        assert early.shortfall_rps == pytest.approx(complete.shortfall_rps)
