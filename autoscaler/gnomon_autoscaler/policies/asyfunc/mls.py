"""Model-level scaling, Algorithm 1: the number and size of Bodies, decided once a period for the last period's mean rate R.

    R > α·R_max       more Bodies of c_best cores, each on the node with most free cores, until R ≤ α·R_max
    R < β·R_max       the Bodies of least η end, one after the other, while R < β·R_max and R ≤ α·R_max holds without them
    in between        nothing

c_best maximises η over cores and batches that meet the objective, (b − 1)/R + t_l(c, b) ≤ t_SLO. docs/decisions/0011-mls.md
documents each point at which the printed algorithm is ambiguous, with a worked example.

**Promotion.** If model-level scaling wants another Body, a Shadow may load the remaining blocks of the model and become that
Body.

A long burst then needs neither a second cold start nor further cores: the Shadow's cores become the Body's. A Shadow qualifies if
its Body is ready, its cores sustain at least the rate of a Body of c_best, and the rest of the model fits its node. Of several,
the one that would sustain the highest rate is promoted first.

A promotion counts as a creation: it is one of the Bodies that bounds, operators and Algorithm 1 have decided on.
docs/decisions/0015-promotion-and-resizing.md has worked examples.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge
from gnomon_autoscaler.replica_policy import ROUNDING, FreeCapacity, victim_order, whole
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.scaling import CreateBody, Observation
from gnomon_core.units import many


@dataclass(frozen=True, slots=True)
class Configuration:
    """A number of cores with its best batch; `rate_rps` is R_max of such a Body."""

    cores: int
    batch: int
    latency_s: float
    efficiency: float
    rate_rps: float

    def __str__(self) -> str:
        return f"{many(self.cores, 'core')} (b = {self.batch} in {self.latency_s * 1e3:.0f} ms, η {self.efficiency:.3g})"


def configurations(knowledge: Knowledge, rate_rps: float) -> tuple[Configuration, ...]:
    """Lines 3 to 15 for every number of cores, the best η first: the next best is for when no node has room for the best.

    If no configuration meets the objective, the result is the quickest one for a batch of one.
    """
    rates = knowledge.rates
    feasible = [best for cores in rates.cores if (best := best_batch(knowledge, cores, rate_rps)) is not None]
    if not feasible:
        quickest = min(rates.cores, key=lambda cores: (_alone_s(knowledge, cores), cores))
        alone_s = _alone_s(knowledge, quickest)
        efficiency = knowledge.efficiency.at(1, alone_s, quickest, knowledge.parameter_bytes)
        return (Configuration(quickest, 1, alone_s, efficiency, rates.rate_rps(quickest)),)
    return tuple(sorted(feasible, key=lambda best: (-best.efficiency, best.cores)))


def best_batch(knowledge: Knowledge, cores: int, rate_rps: float) -> Configuration | None:
    """The batch of highest η that fills and ends within the objective on these cores; None where none does.

    At rate 0 only a batch of one fills.
    """
    body = knowledge.rates.body(cores)
    if body is None:
        return None
    best: Configuration | None = None
    for batch, seconds in enumerate(body.latency_s, start=1):
        if seconds <= 0.0 or filling_s(batch, rate_rps) + seconds > knowledge.rates.slo_s:
            continue
        efficiency = knowledge.efficiency.at(batch, seconds, cores, knowledge.parameter_bytes)
        if best is None or efficiency > best.efficiency:
            best = Configuration(cores, batch, seconds, efficiency, body.rate_rps)
    return best


def filling_s(batch: int, rate_rps: float) -> float:
    """The time in seconds that the first request of a batch waits for the last, (b − 1)/R."""
    if batch == 1:
        return 0.0
    return (batch - 1) / rate_rps if rate_rps > 0 else math.inf


def from_nothing(knowledge: Knowledge, rate_rps: float, alpha: float) -> int:
    """The number of Bodies of c_best that the rate would need if there were none yet; at least one."""
    each_rps = configurations(knowledge, rate_rps)[0].rate_rps
    return max(1, whole(rate_rps / (alpha * each_rps))) if each_rps > 0 else 1


def scale_out(
    knowledge: Knowledge, options: Options, capacity: FreeCapacity, *, rate_rps: float, rate_max_rps: float, memory_bytes: int
) -> list[CreateBody]:
    """Lines 16 to 18. Ends when R ≤ α·R_max, or when no node has room for any configuration."""
    choices = configurations(knowledge, rate_rps)
    created: list[CreateBody] = []
    # Tolerates rounding errors of the sum, so that equal rates create no further Body.
    while rate_rps > options.alpha * rate_max_rps * (1 + ROUNDING):
        placed = _placed(choices, capacity, memory_bytes)
        if placed is None:
            break
        configuration, node = placed
        rate_max_rps += configuration.rate_rps
        created.append(CreateBody(configuration.cores, node))
    return created


def so_many_more(
    knowledge: Knowledge, capacity: FreeCapacity, *, rate_rps: float, count: int, memory_bytes: int
) -> list[CreateBody]:
    """`count` Bodies, whatever the rate: for a minimum, for an operator's number, or in place of Bodies that ended.

    A Body that fits no node is created without one: the platform chooses a node or refuses it.
    """
    choices = configurations(knowledge, rate_rps)
    created: list[CreateBody] = []
    for _ in range(count):
        placed = _placed(choices, capacity, memory_bytes)
        created.append(CreateBody(choices[0].cores) if placed is None else CreateBody(placed[0].cores, placed[1]))
    return created


def least_efficient_first(knowledge: Knowledge, bodies: Sequence[Instance], rate_rps: float) -> list[Instance]:
    """Line 20: the Bodies by η, the least first; of equal η those first whose end costs least."""
    best = {cores: best_batch(knowledge, cores, rate_rps) for cores in {body.cores for body in bodies}}
    return sorted(bodies, key=lambda body: (_efficiency(best[body.cores]), *victim_order(body)))


def scale_in(
    knowledge: Knowledge, options: Options, bodies: Sequence[Instance], rates_rps: Mapping[str, float], rate_rps: float
) -> list[Instance]:
    """Lines 19 to 28: the Bodies that end. `rates_rps` are those that the Bodies sustain, by id.

    A Body ends only if R ≤ α·R_max without it, a ready Body only if the ready ones suffice. The last Body stays.
    """
    kept_bodies = list(bodies)
    ended: list[Instance] = []
    for victim in least_efficient_first(knowledge, bodies, rate_rps):
        if rate_rps >= options.beta * math.fsum(rates_rps[body.id] for body in kept_bodies) or len(kept_bodies) == 1:
            break
        remaining = [body for body in kept_bodies if body is not victim]
        serves = victim.state is InstanceState.READY
        # A ready Body ends only if the ready ones suffice: starting Bodies serve nothing yet.
        counted = [body for body in remaining if body.state is InstanceState.READY or not serves]
        if rate_rps <= options.alpha * math.fsum(rates_rps[body.id] for body in counted) * (1 + ROUNDING):
            kept_bodies = remaining
            ended.append(victim)
    return ended


def _placed(choices: Sequence[Configuration], capacity: FreeCapacity, memory_bytes: int) -> tuple[Configuration, str] | None:
    """The best configuration that fits, and its node; the Shadows' reserve only if nothing fits elsewhere."""
    # The reserve is for Shadows; a Body uses it only if no configuration fits any node otherwise.
    for reserve in (False, True):
        for configuration in choices:
            node = capacity.best_node(configuration.cores, memory_bytes, reserve=reserve)
            if node is not None:
                capacity.take(node, configuration.cores, memory_bytes)
                return configuration, node
    return None


def _alone_s(knowledge: Knowledge, cores: int) -> float:
    body = knowledge.rates.body(cores)
    return body.latency_s[0] if body is not None else math.inf


def _efficiency(best: Configuration | None) -> float:
    return best.efficiency if best is not None else 0.0


def promotable(
    knowledge: Knowledge, options: Options, observation: Observation, rate_rps: float, memory_bytes: int
) -> list[Instance]:
    """The Shadows that can become Bodies now, the best first; no two count on the same memory. None without the option."""
    if not options.promotion:
        return []
    least_rps = configurations(knowledge, rate_rps)[0].rate_rps
    serving = {body.id for body in observation.ready}
    able = [shadow for shadow in observation.shadows if shadow.state is InstanceState.READY and shadow.partner in serving]
    capacity = FreeCapacity(observation.nodes)
    shadows: list[Instance] = []
    for shadow in sorted(able, key=lambda each: (-knowledge.rates.rate_rps(each.cores), each.id)):
        more_bytes = max(0, memory_bytes - shadow.memory_bytes)
        if knowledge.rates.rate_rps(shadow.cores) >= least_rps and capacity.memory_bytes(shadow.node) >= more_bytes:
            capacity.take(shadow.node, 0, more_bytes)
            shadows.append(shadow)
    return shadows


def as_bodies(observation: Observation, promoted: Collection[str]) -> Observation:
    """The observation with these Shadows as the Bodies that they become."""
    if not promoted:
        return observation
    return replace(
        observation,
        instances=tuple(_as_body(instance) if instance.id in promoted else instance for instance in observation.instances),
    )


def _as_body(shadow: Instance) -> Instance:
    return replace(shadow, kind=InstanceKind.BODY, state=InstanceState.STARTING, partner=None, pair=None)
