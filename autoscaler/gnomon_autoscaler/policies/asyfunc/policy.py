"""`asyfunc`: Bodies for the stable load, Shadows for bursts.

Each tick has both levels, in the paper's order: how many Bodies there are to be (`bodies`, within the wrappers that every policy
has), then Shadows for the Bodies that serve and stay (`layer_level`), with what room the new Bodies leave. Shadows come first in
the list of actions: they are what cannot wait, and a Body that is refused must not hold them up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gnomon_autoscaler.by_count import towards
from gnomon_autoscaler.counting import Memory, count_in, goes_on, inner, moment
from gnomon_autoscaler.policies.asyfunc.bodies import Bodies, body_memory_bytes, mean_rps, sustained_rps
from gnomon_autoscaler.policies.asyfunc.growth import (
    ARRIVES_WITHIN_S,
    Growth,
    as_they_were,
    as_they_will_be,
    cores_before,
    given_back,
    grown_after,
    growths_in,
    overdue,
    refused,
    returning,
)
from gnomon_autoscaler.policies.asyfunc.knowledge import Knowledge, Known
from gnomon_autoscaler.policies.asyfunc.layer_level import LayerLevel, Tick
from gnomon_autoscaler.policies.asyfunc.model_level import configurations, least_efficient_first, scale_in, so_many_more
from gnomon_autoscaler.policies.asyfunc.options import Options, ablated_options, asyfunc_options
from gnomon_autoscaler.policies.asyfunc.promotion import as_bodies, promotable
from gnomon_autoscaler.room import Room
from gnomon_autoscaler.wrappers import standard
from gnomon_core.errors import bad_request
from gnomon_core.fleet import InstanceState
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

VERSION = 1


class AsyFunc:
    """Both levels of scaling around one model's profile."""

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.options = options
        self.period_s = options.tick_s
        self.default_scheduler = "adaptive" if options.adaptive else "fixed"
        self.needs_profile = True
        self.needs = frozenset({"place", "size"}) | _needs_of_bursts(options)
        self._known = Known(options)
        self._bodies = standard(Bodies(name, options, self._known))

    def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Bodies, Shadows and, without adaptive scheduling, the buffer plan."""
        ours = (state.policy, state.version) == (self.name, VERSION)
        memory: Memory = state.values if ours else {}
        growths = growths_in(memory, seen)
        steady = seen if self.options.shadows_count else as_they_were(seen, cores_before(growths))
        wish = self._bodies.wish(steady, inner(memory))
        known = self._known.of(seen)
        remembered: dict[str, StateValue] = {"inner": wish.memory}
        if known is None:
            ends: tuple[Action, ...] = (
                *(DestroyShadow(shadow.id) for shadow in seen.shadows),
                *given_back(cores_before(growths)),
            )
            decision = Decision(ends + towards(wish.count, seen), wish.reason, wish.count)
            return decision, PolicyState(self.name, VERSION, remembered)
        room = Room(seen.nodes)
        bodies = self._towards(wish.count, steady, known, room)
        ending = {action.id for action in bodies if isinstance(action, DestroyBody)}
        after = as_bodies(seen, [action.id for action in bodies if isinstance(action, PromoteShadow)])
        layers = self._layers(after, known, ending, room, growths)
        remembered |= {"grown": left} if (left := grown_after(growths, layers.resized, seen, ending)) else {}
        plan = self._plan(seen, known, memory, remembered)
        actions = (*_orphans(after, ending), *layers.released, *layers.resized, *layers.created, *layers.changed, *bodies, *plan)
        alone = "no node can make Shadows now" if "pair" in self.needs and not any(node.pairs for node in seen.nodes) else ""
        reason = "; ".join(said for said in (wish.reason, layers.reason, alone) if said)
        return Decision(actions, reason, wish.count), PolicyState(self.name, VERSION, remembered)

    def _towards(self, count: int, seen: Observation, known: Knowledge, room: Room) -> tuple[Action, ...]:
        """What makes the number of Bodies `count`, of the sizes and in the order of model-level scaling."""
        rate_rps, surplus = mean_rps(seen, self.options), len(seen.live) - count
        if surplus <= 0:
            if not surplus:
                return ()
            memory_bytes = body_memory_bytes(seen)
            risen = promotable(known, self.options, seen, rate_rps, memory_bytes)[:-surplus]
            for shadow in risen:
                room.take(shadow.node, 0, max(0, memory_bytes - shadow.memory_bytes))
            missing = -surplus - len(risen)
            made = so_many_more(known, room, rate_rps=rate_rps, count=missing, memory_bytes=memory_bytes)
            return (*(PromoteShadow(shadow.id) for shadow in risen), *made)
        rates_rps = sustained_rps(known, seen, seen.live, shadows_count=self.options.shadows_count)
        victims = scale_in(known, self.options, seen.live, rates_rps, rate_rps)
        others = [body for body in least_efficient_first(known, seen.live, rate_rps) if body not in victims]
        return tuple(DestroyBody(victim.id) for victim in (*victims, *others)[:surplus])

    def _layers(
        self, seen: Observation, known: Knowledge, ending: set[str], room: Room, growths: Mapping[str, Growth]
    ) -> LayerLevel:
        kept = {name: growth for name, growth in growths.items() if name not in ending}
        if not self.options.layers:
            mine = {body.id for body in seen.live} - ending
            shadows = tuple(DestroyShadow(shadow.id) for shadow in seen.shadows if shadow.partner in mine)
            return LayerLevel(released=shadows, resized=given_back(cores_before(kept)))
        serving = [body for body in seen.live if body.state is InstanceState.READY and body.id not in ending]
        late, in_vain = overdue(kept, seen), refused(kept, seen)
        waited = {action.id for action in late} | returning(kept, seen) | in_vain
        grown = {name: before for name, before in cores_before(kept).items() if name not in waited}
        level = Tick(known, self.options, seen, as_they_will_be(serving), grown, in_vain).scale(room)
        said = (level.reason, *(f"{action.id} got no more cores within {ARRIVES_WITHIN_S:g} s" for action in late))
        return replace(level, resized=(*late, *level.resized), reason="; ".join(one for one in said if one))

    def _plan(
        self, seen: Observation, known: Knowledge, memory: Memory, remembered: dict[str, StateValue]
    ) -> tuple[SetBufferPlan, ...]:
        """Without adaptive scheduling: B = b_best and T = t_SLO − t_l(c_best, b_best), for a period; told until in force."""
        if self.options.adaptive:
            return ()
        planned_at_s, batch, wait_s = moment(memory, "planned_at_s"), count_in(memory, "batch"), moment(memory, "wait_s")
        if batch is None or wait_s is None or not goes_on(planned_at_s, self.options.period_s, seen.now_s):
            best = configurations(known, mean_rps(seen, self.options))[0]
            planned_at_s, batch, wait_s = seen.now_s, best.batch, max(0.0, known.rates.slo_s - best.latency_s)
        remembered |= {"planned_at_s": planned_at_s, "batch": batch, "wait_s": wait_s}
        plan = SetBufferPlan(batch, wait_s)
        return () if plan == seen.plan else (plan,)


def _needs_of_bursts(options: Options) -> frozenset[str]:
    """What a platform must be able to do for layer-level scaling."""
    needs = {"shadow": {"pair"}, "resize": {"resize"}, "either": {"pair", "resize"}}
    promotes = {"promote"} if options.promotion else set()
    return frozenset(needs[options.burst_cores] | promotes) if options.layers else frozenset()


def _orphans(seen: Observation, ending: set[str]) -> tuple[DestroyShadow, ...]:
    """Shadows whose Body ends now, or serves no more."""
    live = {body.id for body in seen.live}
    return tuple(DestroyShadow(shadow.id) for shadow in seen.shadows if shadow.partner in ending or shadow.partner not in live)


def asyfunc(settings: Settings) -> AsyFunc:
    """Both levels of scaling, adaptive scheduling."""
    return AsyFunc("asyfunc", _checked(asyfunc_options(settings)))


def ablated(settings: Settings) -> AsyFunc:
    """`asyfunc-`: without layer-level scaling, as its section 7.2 speaks of it, or as `gnomon/ablation` says."""
    return AsyFunc("asyfunc-", _checked(ablated_options(settings)))


def _checked(options: Options) -> Options:
    if options.beta >= options.alpha:
        raise bad_request(
            "invalid_setting",
            f"beta is {options.beta:g}, not below alpha, {options.alpha:g}.",
            "Between the two nothing changes: without room there, instances would come and go.",
        )
    return options
