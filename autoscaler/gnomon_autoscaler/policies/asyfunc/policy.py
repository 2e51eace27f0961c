"""`asyfunc`: Bodies for the stable load, Shadows for bursts.

Each tick runs both levels, in the paper's order: the number of Bodies (`mls`, within the wrappers of every policy), then Shadows
for the Bodies that serve and stay (`lls`), in the capacity that the new Bodies leave. In the list of actions Shadows come first:
they are urgent, and a refused Body must not delay them.

The number of Bodies is decided by a replica policy, so that bounds, operators and idle times apply as for every policy.

Model-level scaling decides once a period. Between two decisions the number stays, and a Body that ends by itself is replaced. If
bounds or an operator set another number, the decided number is kept for as long as R would need the same number of Bodies from
zero. Without a profile, latencies by cores and batch are unknown; the number then follows the mean rate, as in `lv`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gnomon_autoscaler.policies.asyfunc.lls import (
    ARRIVES_WITHIN_S,
    Growth,
    LayerLevel,
    Tick,
    cores_before,
    grown_after,
    growths_in,
    orphans,
    overdue,
    refused_growths,
    resizes_back,
    returning,
    shadows_of,
    with_former_cores,
    with_pending_cores,
)
from gnomon_autoscaler.policies.asyfunc.mls import (
    as_bodies,
    configurations,
    from_nothing,
    least_efficient_first,
    promotable,
    scale_in,
    scale_out,
    so_many_more,
)
from gnomon_autoscaler.policies.asyfunc.options import Options, ablated_options, asyfunc_options
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge, KnowledgeCache
from gnomon_autoscaler.policies.rates import Rate
from gnomon_autoscaler.replica_policy import (
    ROUNDING,
    DesiredCount,
    FreeCapacity,
    Memory,
    actions_towards,
    count_in,
    inner_memory,
    memory_of,
    own_cores,
    timestamp_in,
    within_period,
)
from gnomon_autoscaler.wrappers import standard
from gnomon_core.errors import bad_request
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.pairs import together
from gnomon_core.scaling import (
    Action,
    Decision,
    DestroyBody,
    DestroyShadow,
    Observation,
    PolicyState,
    PromoteShadow,
    SetBufferPlan,
    StateValue,
)
from gnomon_core.settings import Settings
from gnomon_core.units import many


@dataclass(frozen=True, slots=True)
class Bodies:
    """The number of Bodies that model-level scaling wants."""

    name: str
    options: Options
    knowledge: KnowledgeCache
    version: int = 1

    @property
    def period_s(self) -> float:
        return self.options.tick_s

    @property
    def default_scheduler(self) -> str:
        return "adaptive" if self.options.adaptive else "fixed"

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:
        decided_at_s, count = timestamp_in(memory, "decided_at_s"), count_in(memory, "count")
        if count is not None and within_period(decided_at_s, self.options.period_s, observation.now_s):
            return DesiredCount(count, f"{count} for this period", memory)
        knowledge = self.knowledge.of(observation)
        if knowledge is None:
            desired = Rate(self.name, self.options.period_s).desired_count(observation, {})
            text = f"{missing(observation)}; by the mean rate: {desired.reason}"
            return DesiredCount(max(1, desired.count), text, {"decided_at_s": observation.now_s, "count": max(1, desired.count)})
        return self._decide(observation, knowledge, memory)

    def _decide(self, observation: Observation, knowledge: Knowledge, memory: Memory) -> DesiredCount:
        rate_rps = mean_rps(observation, self.options)
        ideal = from_nothing(knowledge, rate_rps, self.options.alpha)
        count = count_in(memory, "count")
        if count is not None and count != len(observation.live) and ideal == count_in(memory, "ideal"):
            text = f"{rate_rps:.2f} rps in {self.options.period_s:g} s still deserve {count}"
        else:
            count, text = self._counted(observation, knowledge, rate_rps)
        return DesiredCount(count, text, {"decided_at_s": observation.now_s, "count": count, "ideal": ideal})

    def _counted(self, observation: Observation, knowledge: Knowledge, rate_rps: float) -> tuple[int, str]:
        options, live = self.options, len(observation.live)
        rates_rps = sustained_rps(knowledge, observation, observation.live, shadows_count=options.shadows_count)
        rate_max_rps = math.fsum(rates_rps.values())
        slow = " (no number of cores meets the SLO)" if knowledge.rates.out_of_reach else ""
        text = f"{rate_rps:.2f} rps in {options.period_s:g} s, R_max {rate_max_rps:.2f}{slow}"
        if rate_rps > options.alpha * rate_max_rps * (1 + ROUNDING):
            memory_bytes = body_memory_bytes(observation)
            promoted = 0
            for shadow in promotable(knowledge, options, observation, rate_rps, memory_bytes):
                if rate_rps > options.alpha * rate_max_rps * (1 + ROUNDING):
                    rate_max_rps += knowledge.rates.rate_rps(shadow.cores)
                    promoted += 1
            created = scale_out(
                knowledge,
                options,
                FreeCapacity(observation.nodes),
                rate_rps=rate_rps,
                rate_max_rps=rate_max_rps,
                memory_bytes=memory_bytes,
            )
            best = configurations(knowledge, rate_rps)[0]
            full = "" if created or promoted else ", but no node has room"
            shadows = f"{many(promoted, 'Shadow')} as Body, " if promoted else ""
            reason = (
                f"{text}: above α = {options.alpha:g}, {shadows}{len(created)} more of {best} at κ = {knowledge.kappa:.3g}{full}"
            )
            return max(1, live + promoted + len(created)), reason
        if rate_rps < options.beta * rate_max_rps:
            ended = scale_in(knowledge, options, observation.live, rates_rps, rate_rps)
            needed = "" if ended else ", but each is needed"
            return max(1, live - len(ended)), f"{text}: below β = {options.beta:g}, {len(ended)} fewer{needed}"
        if live > 1 and not rate_rps and not rate_max_rps:
            # Of a former policy: by their R_max of 0 they would stay until there is a load.
            return 1, f"{text}: no load, and Bodies of cores that the profile does not know"
        return max(1, live), f"{text}: between β = {options.beta:g} and α = {options.alpha:g}, {max(1, live)}"


def missing(observation: Observation) -> str:
    """The reason text for a missing profile, with what to do."""
    model = observation.settings.model or "MODEL"
    if observation.profile is None:
        return f"no profile of the model: measure one with `gnomon models profile {model}`"
    most = observation.settings.max_cores
    return f"the profile knows no number of cores up to {most}: measure with `gnomon models profile {model}`"


def mean_rps(observation: Observation, options: Options) -> float:
    """R: the mean rate of the last period."""
    return observation.history.rate_rps(observation.history.arrivals, options.period_s)


def sustained_rps(
    knowledge: Knowledge, observation: Observation, bodies: Sequence[Instance], *, shadows_count: bool
) -> dict[str, float]:
    """R_max of each of these Bodies by its id; with the Shadow that it has or is about to have, where Shadows count."""
    helped = shadows_of(observation.shadows) if shadows_count else {}
    pairs = {name: together([shadow.pair for shadow in shadows if shadow.pair is not None]) for name, shadows in helped.items()}
    return {body.id: knowledge.rates.rate_rps(body.cores, pairs.get(body.id)) for body in bodies}


def body_memory_bytes(observation: Observation) -> int:
    """Memory of one Body of this function in bytes; 0 until a Body exists, so that only cores are checked."""
    return max((body.memory_bytes for body in observation.live), default=0)


VERSION = 1


class AsyFunc:
    """The scaling policy: both levels of AsyFunc, around one model's profile."""

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.options = options
        self.period_s = options.tick_s
        self.default_scheduler = "adaptive" if options.adaptive else "fixed"
        self.needs_profile = True
        self.needs = frozenset({"place", "size"}) | _needs_of_bursts(options)
        self._known = KnowledgeCache(options)
        self._bodies = standard(Bodies(name, options, self._known))

    def decide(self, observation: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Decide on Bodies, Shadows and, without adaptive scheduling, the buffer plan."""
        memory = memory_of(state, self.name, VERSION)
        growths = growths_in(memory, observation)
        steady = observation if self.options.shadows_count else with_former_cores(observation, cores_before(growths))
        desired = self._bodies.desired_count(steady, inner_memory(memory))
        knowledge = self._known.of(observation)
        remembered: dict[str, StateValue] = {"inner": desired.memory}
        if knowledge is None:
            ends: tuple[Action, ...] = (
                *(DestroyShadow(shadow.id) for shadow in observation.shadows),
                *resizes_back(cores_before(growths)),
            )
            towards = (*own_cores(observation), *actions_towards(desired.count, observation))
            decision = Decision(ends + towards, desired.reason, desired.count)
            return decision, PolicyState(self.name, VERSION, remembered)
        capacity = FreeCapacity(observation.nodes)
        bodies = self._towards(desired.count, steady, knowledge, capacity)
        ending = {action.id for action in bodies if isinstance(action, DestroyBody)}
        # A promoted Shadow helps its Body no more, so layer-level scaling must count it as a Body already.
        after = as_bodies(observation, [action.id for action in bodies if isinstance(action, PromoteShadow)])
        layers = self._layers(after, knowledge, ending, capacity, growths)
        remembered |= {"grown": left} if (left := grown_after(growths, layers.resized, observation, ending)) else {}
        plan = self._plan(observation, knowledge, memory, remembered)
        changes: tuple[Action, ...] = (
            *own_cores(observation),
            *layers.released,
            *layers.resized,
            *layers.created,
            *layers.changed,
        )
        actions = (*orphans(after, ending), *changes, *bodies, *plan)
        alone = (
            "no node can make Shadows now" if "pair" in self.needs and not any(node.pairs for node in observation.nodes) else ""
        )
        reason = "; ".join(text for text in (desired.reason, layers.reason, alone) if text)
        return Decision(actions, reason, desired.count), PolicyState(self.name, VERSION, remembered)

    def _towards(self, count: int, observation: Observation, knowledge: Knowledge, capacity: FreeCapacity) -> tuple[Action, ...]:
        """Actions that bring the number of Bodies to `count`, in the sizes and order of model-level scaling."""
        rate_rps, surplus = mean_rps(observation, self.options), len(observation.live) - count
        if surplus <= 0:
            if not surplus:
                return ()
            memory_bytes = body_memory_bytes(observation)
            risen = promotable(knowledge, self.options, observation, rate_rps, memory_bytes)[:-surplus]
            for shadow in risen:
                capacity.take(shadow.node, 0, max(0, memory_bytes - shadow.memory_bytes))
            missing = -surplus - len(risen)
            created = so_many_more(knowledge, capacity, rate_rps=rate_rps, count=missing, memory_bytes=memory_bytes)
            return (*(PromoteShadow(shadow.id) for shadow in risen), *created)
        rates_rps = sustained_rps(knowledge, observation, observation.live, shadows_count=self.options.shadows_count)
        victims = scale_in(knowledge, self.options, observation.live, rates_rps, rate_rps)
        # Bounds or an operator may want fewer Bodies than Algorithm 1 would end: further victims follow in the same order.
        survivors = [body for body in least_efficient_first(knowledge, observation.live, rate_rps) if body not in victims]
        return tuple(DestroyBody(victim.id) for victim in (*victims, *survivors)[:surplus])

    def _layers(
        self,
        observation: Observation,
        knowledge: Knowledge,
        ending: set[str],
        capacity: FreeCapacity,
        growths: Mapping[str, Growth],
    ) -> LayerLevel:
        live_growths = {name: growth for name, growth in growths.items() if name not in ending}
        if not self.options.layers:
            remaining_ids = {body.id for body in observation.live} - ending
            shadows = tuple(DestroyShadow(shadow.id) for shadow in observation.shadows if shadow.partner in remaining_ids)
            return LayerLevel(released=shadows, resized=resizes_back(cores_before(live_growths)))
        serving = [body for body in observation.live if body.state is InstanceState.READY and body.id not in ending]
        late, in_vain = overdue(live_growths, observation), refused_growths(live_growths, observation)
        waited = {action.id for action in late} | returning(live_growths, observation) | in_vain
        grown = {name: before for name, before in cores_before(live_growths).items() if name not in waited}
        level = Tick(knowledge, self.options, observation, with_pending_cores(serving), grown, in_vain).scale(capacity)
        text = (level.reason, *(f"{action.id} got no more cores within {ARRIVES_WITHIN_S:g} s" for action in late))
        return replace(level, resized=(*late, *level.resized), reason="; ".join(sentence for sentence in text if sentence))

    def _plan(
        self, observation: Observation, knowledge: Knowledge, memory: Memory, remembered: dict[str, StateValue]
    ) -> tuple[SetBufferPlan, ...]:
        """The plan without adaptive scheduling, B = b_best and T = t_SLO − t_l(c_best, b_best); repeated until in force."""
        if self.options.adaptive:
            return ()
        planned_at_s, batch, wait_s = (
            timestamp_in(memory, "planned_at_s"),
            count_in(memory, "batch"),
            timestamp_in(memory, "wait_s"),
        )
        if batch is None or wait_s is None or not within_period(planned_at_s, self.options.period_s, observation.now_s):
            best = configurations(knowledge, mean_rps(observation, self.options))[0]
            planned_at_s, batch, wait_s = observation.now_s, best.batch, max(0.0, knowledge.rates.slo_s - best.latency_s)
        remembered |= {"planned_at_s": planned_at_s, "batch": batch, "wait_s": wait_s}
        plan = SetBufferPlan(batch, wait_s)
        return () if plan == observation.plan else (plan,)


def _needs_of_bursts(options: Options) -> frozenset[str]:
    """The platform capabilities that layer-level scaling needs under these options."""
    needs = {"shadow": {"pair"}, "resize": {"resize"}, "either": {"pair", "resize"}}
    promotes = {"promote"} if options.promotion else set()
    return frozenset(needs[options.burst_cores] | promotes) if options.layers else frozenset()


def asyfunc(settings: Settings) -> AsyFunc:
    """Make `asyfunc`: both levels of scaling, with adaptive scheduling."""
    return AsyFunc("asyfunc", _checked(asyfunc_options(settings)))


def ablated(settings: Settings) -> AsyFunc:
    """Make `asyfunc-`: without layer-level scaling, as in section 7.2, or without the part that `gnomon/ablation` names."""
    return AsyFunc("asyfunc-", _checked(ablated_options(settings)))


def _checked(options: Options) -> Options:
    if options.beta >= options.alpha:
        raise bad_request(
            "invalid_setting",
            f"beta is {options.beta:g}, not below alpha, {options.alpha:g}.",
            "Between the two nothing changes: without room there, instances would come and go.",
        )
    return options
