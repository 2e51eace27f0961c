"""The systems that INFaaS is compared with (section 6, Table 5), as policies: a developer fixes each query's variant.

| | the number of instances | |
| --- | --- | --- |
| Clipper+ | is set beforehand | Clipper, TensorFlow Serving and Triton: variants are loaded in advance, nothing is scaled |
| SM+ | follows the load | SageMaker and AI Platform: each variant is scaled horizontally, never exchanged for another one |

**Readings.** The paper sets Clipper+'s numbers "such that Clipper+ achieves the highest performance given available resources".
Here they are what the highest load needs with the same headroom as the other systems; the developer knows that load in advance.
That is the least number with which Clipper+ serves everything: the paper's uses whatever there is, and costs more. SM+ has the
headroom (1.05) and the waiting time T_v of INFaaS's Model-Autoscaler, because the paper's baselines are configurations of INFaaS.
A variant of SM+ keeps one instance, as SageMaker's do. The paper's developer chooses "the most cost-effective" variant of a kind
of hardware (section 6.2): on a GPU with batches of 8 for Clipper+ and of 1, "the cheapest", for SM+. Here it is the developer's
preference: `cost_per_sample` for Clipper+, `single_sample_s` for SM+, or another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gnomon_autoscaler.policies.infaas.problem import ROUNDING, Options, changes, fitting, take
from gnomon_core.errors import not_found
from gnomon_core.variant_scaling import ApplicationObservation, Demand, ScalingPlan, VariantMember
from gnomon_core.variants import Variant

Preference = Callable[[Variant], float]
"""The quantity that a developer minimises when choosing a variant."""


def cost_per_sample(variant: Variant) -> float:
    """Clipper+'s preference: the cost of a sample on a busy instance."""
    return variant.cost_per_s / variant.saturation_rps


def single_sample_s(variant: Variant) -> float:
    """SM+'s preference: the seconds of one sample alone."""
    return min(variant.latency_s.items())[1]


def fixed_variant(variants: Iterable[Variant], demand: Demand, prefer: Preference, hardware: str | None = None) -> Variant:
    """The developer's choice for one kind of query, when it is registered: nothing is known of loads yet.

    Raises:
        GnomonError: 404 `no_variant_satisfies`.

    """
    accepted = [variant for variant in variants if demand.accepts(variant) and hardware in (None, variant.hardware)]
    if not accepted:
        where = "" if hardware is None else f" on {hardware}"
        raise not_found("no_variant_satisfies", f"No variant satisfies the queries{where}.", "Ask for less, or add a variant.")
    return min(accepted, key=lambda variant: (prefer(variant), variant.cost_per_s, variant.inference_s, variant.id))


def preloaded(
    peaks_rps: Iterable[tuple[Variant, float]], slack: float = 1.05, capacity: Mapping[str, float] | None = None
) -> dict[str, int]:
    """Clipper+'s numbers of instances, by the id of each variant: what its highest load needs, one at least.

    Where the capacity does not hold them all, each variant has as nearly the same share of what it needs as possible.
    """
    peaks = list(peaks_rps)
    wanted = {variant.id: _needed(variant, peak_rps, slack) for variant, peak_rps in peaks}
    if capacity is None:
        return wanted
    members = tuple(VariantMember(variant) for variant, _ in peaks)
    return _granted(ApplicationObservation(0.0, "", members, (), capacity), wanted, dict.fromkeys(wanted, 0))


def clipper(observation: ApplicationObservation, instances: Mapping[str, int]) -> tuple[ScalingPlan, Mapping[str, int]]:
    """Clipper+: the numbers that were set, whatever the load is."""
    return _plan(observation, instances, "clipper+", 0.0), instances


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The state of SM+: since when a variant could do with fewer instances, and with how many at least since then."""

    surplus: Mapping[str, tuple[float, int]] = field(default_factory=dict)


def sagemaker(
    observation: ApplicationObservation, state: ReplicaState, fixed: Sequence[str], options: Options | None = None
) -> tuple[ScalingPlan, ReplicaState]:
    """SM+: as many instances of each fixed variant as its load needs; fewer only when that has sufficed for T_v."""
    slack = (options or Options()).slack
    members = {member.variant.id: member for member in observation.members if member.variant.id in fixed}
    instances: dict[str, int] = {}
    surplus: dict[str, tuple[float, int]] = {}
    for name, member in members.items():
        needed = _needed(member.variant, member.load_rps, slack)
        instances[name] = max(needed, member.running)
        if needed >= member.running:
            continue
        since_s, most = state.surplus.get(name, (observation.now_s, needed))
        most = max(most, needed)
        if observation.now_s - since_s < member.variant.load_s:
            surplus[name] = (since_s, most)
        else:
            instances[name] = most
    running = {name: member.running for name, member in members.items()}
    granted = _granted(observation, instances, running)
    short = sum(
        max(0.0, slack * member.load_rps - granted.get(name, 0) * member.variant.saturation_rps)
        for name, member in members.items()
    )
    return _plan(observation, granted, "sm+", short), ReplicaState(surplus)


def _needed(variant: Variant, load_rps: float, slack: float) -> int:
    return max(1, math.ceil(slack * load_rps / variant.saturation_rps * (1 - ROUNDING)))


def _granted(observation: ApplicationObservation, wanted: Mapping[str, int], running: Mapping[str, int]) -> dict[str, int]:
    """The instances that run and stay, and one after the other for the variant that lacks the largest share, while they fit."""
    variants = {member.variant.id: member.variant for member in observation.members}
    resources = {
        name: {kind: amount for kind, amount in variants[name].resources.items() if amount and kind in observation.capacity}
        for name in wanted
    }
    granted = {name: min(count, running[name]) for name, count in wanted.items()}
    left = dict(observation.capacity)
    for name, count in granted.items():
        take(resources[name], count, left)
    lacking = {name for name, count in wanted.items() if granted[name] < count}
    while lacking:
        name = min(lacking, key=lambda lacking_name: (granted[lacking_name] / wanted[lacking_name], lacking_name))
        if fitting(resources[name], left) < 1:
            lacking.discard(name)
            continue
        granted[name] += 1
        take(resources[name], 1, left)
        if granted[name] == wanted[name]:
            lacking.discard(name)
    return {name: count for name, count in granted.items() if count}


def _plan(observation: ApplicationObservation, instances: Mapping[str, int], name: str, short_rps: float) -> ScalingPlan:
    cost = sum(member.variant.cost_per_s * instances.get(member.variant.id, 0) for member in observation.members)
    before = sum(member.variant.cost_per_s * member.running for member in observation.members)
    return ScalingPlan(instances, cost, cost - before, f"{name}: {changes(observation.members, instances)}", short_rps)
