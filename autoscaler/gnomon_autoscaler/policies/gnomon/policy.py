"""`gnomon`: the fewest Bodies that would have met the objective in the last minutes. The latency objective is its only parameter.

**The number of Bodies.** The arrivals of the last five minutes are replayed against rules (`replay`): a floor, and a reaction to
the last second's rate that is held for some time. The rule with the fewest Bodies that would have lost at most one request in a
thousand is followed until the next replay, five seconds later. The headroom thus follows the load's own bursts, without a factor
to tune: none for a steady load, much for a bursty one.

    last five minutes ─▶ replay of each rule ─▶ rule (F, f, h) ─▶ n = max(F, ⌈f · last second ÷ R⌉), h seconds long
                                                                  └─ and more while more waits than the rule expects

The uncertainty of a short history is included: for N arrivals, N + 2·√N are planned for (two standard deviations of a Poisson
count), which is much more for few arrivals and hardly more for many.

**Shadows.** Where nodes do not lend cores, a rule may meet its reaction with Shadows of the Bodies that serve (`shadows`): they
start in milliseconds, and a further Body is wanted only once the need has lasted for a Body's load time. The replay includes what
Shadows add and cost, so that it decides whether they are used, and fewer Bodies are kept for bursts that Shadows carry.

**The size of a Body.** A Body is as large as its node allows, up to `gnomon/max-cores`: memory grows with the number of Bodies.
If nodes lend cores, a Body keeps one core and borrows cores for each batch, so that an idle Body occupies one core only
(scheduler `economical`).

**Inputs.** R is the rate of the smallest batch with about the best throughput, by the model's profile or by the latencies that
the gateway has learned; without either, Bodies are counted by the requests in the system. The load time is that of the profile
until starts have been observed.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import cast

from gnomon_autoscaler.policies.asyfunc.lls import LayerLevel
from gnomon_autoscaler.policies.gnomon.options import Options
from gnomon_autoscaler.policies.gnomon.replay import Help, Rule, Speed, cheapest, never_wait_long, window
from gnomon_autoscaler.policies.gnomon.shadows import Pairs, help_of, shadows_for
from gnomon_autoscaler.replica_policy import (
    DesiredCount,
    FreeCapacity,
    Memory,
    ReplicaPolicyAdapter,
    actions_towards,
    count_in,
    counts_in,
    inner_memory,
    memory_of,
    own_cores,
    timestamp_in,
    whole,
    within_period,
)
from gnomon_autoscaler.wrappers import Wrapper, standard
from gnomon_core.engines import can_borrow
from gnomon_core.fleet import InstanceState
from gnomon_core.scaling import (
    Action,
    CreateBody,
    Decision,
    DestroyBody,
    Observation,
    PolicyState,
    Resize,
    StateValue,
)
from gnomon_core.scheduling import economical_batch
from gnomon_core.settings import Settings

VERSION = 1
PERIOD_S = 0.5
IDLE_CORES = 1
"""The cores that a Body keeps between batches if it borrows the others."""
FIRST_LOAD_S = 1.0
"""The load time of a Body in seconds if none has been observed and no profile has one."""
CONCURRENCY_S = 6.0
"""The window by which Bodies are counted while no latency is known."""
HALF = 0.5
"""The share of the queue that the serving Bodies can answer in time, from which the queue requires more Bodies."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """The replica policy, which decides on the number of Bodies."""

    options: Options
    pairs: Pairs
    name: str = "gnomon"
    version: int = VERSION
    period_s: float = PERIOD_S
    default_scheduler: str = "economical"

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:
        remembered = dict(memory) | _observed_starts(observation, memory) | {"wanted": None}
        if within_period(timestamp_in(memory, "renewed_at_s"), self.options.renew_s, observation.now_s):
            speed, rule = _speed_in(memory), _rule_in(memory)
            # Between two replays only the last second's rate is new, which `_followed` applies to the rule.
            if speed is not None and rule is not None:
                return self._followed(observation, speed, rule, remembered)
        speed = speed_of(observation, self.options, timestamp_in(remembered, "load_s"))
        if speed is None:
            return _by_concurrency(observation, remembered)
        rule = self._rule(observation, speed)
        remembered |= {"renewed_at_s": observation.now_s, "floor": rule.floor, "factor": rule.factor, "hold_s": rule.hold_s}
        remembered |= {
            "shadows": rule.shadows,
            "loss": rule.loss,
            "rates_rps": speed.rates_rps,
            "batch_s": speed.batch_s,
            "loads_s": speed.load_s,
        }
        return self._followed(observation, speed, rule, remembered)

    def _rule(self, observation: Observation, speed: Speed) -> Rule:
        """The cheapest rule for the arrivals of the last minutes."""
        history, scale, slo_s = observation.history, observation.settings.scale, observation.settings.slo_s
        arrivals = self._expected(history.arrivals[-round(self.options.window_s / history.bin_s) :])
        least, most = max(1, scale.min), max(1, scale.max)
        if never_wait_long(arrivals, history.bin_s, speed.rate_rps(least), slo_s - speed.batch_s):
            return Rule(least, 0.0, 0.0, 0.0, float(least))
        points = window(arrivals, history.bin_s, slo_s - speed.batch_s)
        help_ = self._help(observation, speed)
        return cheapest(
            points, speed, slo_s, self.options.loss, least=least, most=most, reacts=self.options.reaction, help_=help_
        )

    def _help(self, observation: Observation, speed: Speed) -> Help | None:
        """What Shadows would add; a Body that borrows cores has all those of its node already."""
        if not self.options.shadows or observation.profile is None or lends(observation, self.options):
            return None
        return help_of(self.pairs, observation, speed.rate_rps(1))

    def _shadows_are_quicker(self, observation: Observation, speed: Speed) -> bool:
        found = self._help(observation, speed)
        return found is not None and found.load_s < speed.load_s

    def _expected(self, arrivals: Sequence[float]) -> Sequence[float]:
        """The window's arrivals, scaled up by the uncertainty of their number."""
        total = sum(arrivals)
        if not self.options.uncertainty or total <= 0:
            return arrivals
        factor = 1 + self.options.spread / math.sqrt(total)
        return [factor * count for count in arrivals]

    def _followed(self, observation: Observation, speed: Speed, rule: Rule, remembered: dict[str, StateValue]) -> DesiredCount:
        history = observation.history
        # One second: the time after which the rule reacts, as in the replay.
        last_rps = history.rate_rps(history.arrivals, 1.0)
        reacted = speed.bodies(rule.factor * last_rps) if rule.factor > 0 else 0
        held = _extreme(remembered, "held", (observation.now_s, reacted), rule.hold_s, operator.gt)
        highest = held[0][1]
        remembered |= _entries("held", held)
        waits = self._of_queue(observation, speed)
        count = max(rule.floor, highest, waits)
        text = f"{last_rps:.1f} rps, a Body answers {speed.rate_rps(1):.2f}: {rule.floor}"
        if rule.factor > 0:
            text += f" or {rule.factor:g} × for {rule.hold_s:g} s = {max(rule.floor, highest)}"
        text += f", replayed {rule.loss:.2%} late"
        if waits > max(rule.floor, highest):
            text += f"; {observation.queued} wait: {waits}"
        now = (observation.now_s, count)
        if rule.shadows:
            lasting = _extreme(remembered, "lasting", now, speed.load_s, operator.lt)
            remembered |= _entries("lasting", lasting) | {"wanted": count}
            count = max(rule.floor, lasting[0][1], waits)
            text += f"; {count} Bodies and Shadows until this has lasted for {speed.load_s:.2g} s" if count < now[1] else ""
        else:
            # More waits than the rule expects: Shadows are there before the next replay, and before a Body.
            urgent = _extreme(
                remembered, "urgent", (now[0], waits if waits > max(rule.floor, highest) else 0), speed.load_s, operator.gt
            )
            wanted = max(count, urgent[0][1]) if urgent[0][1] and self._shadows_are_quicker(observation, speed) else None
            remembered |= _entries("urgent", urgent) | {"wanted": wanted}
        return DesiredCount(count, text, remembered)

    def _of_queue(self, observation: Observation, speed: Speed) -> int:
        """The Bodies that answer the queue in time, if it exceeds half of what the serving Bodies answer in time."""
        if not self.options.queue or not observation.queued:
            return 0
        wait_s = max(speed.batch_s, observation.settings.slo_s - speed.batch_s)
        if observation.queued <= HALF * speed.rate_rps(max(1, len(observation.ready))) * wait_s:
            return 0
        return speed.bodies(observation.history.rate_rps(observation.history.arrivals, 1.0) + observation.queued / wait_s)


def speed_of(observation: Observation, options: Options, load_s: float | None) -> Speed | None:
    """The throughput of Bodies; None if neither a profile nor a measurement gives it."""
    settings, profile = observation.settings, observation.profile

    def seconds(cores: int, batch: int) -> float | None:
        known = profile.whole.at(cores, batch) if profile is not None else None
        if known is None and cores == settings.cores and 0 < batch <= len(observation.latency_s):
            return observation.latency_s[batch - 1]
        return known

    # A ready instance reports its concurrency; before the first one, the settings' value is assumed.
    concurrency = max([one.concurrency for one in observation.ready], default=settings.expected_concurrency)
    cores = body_cores(observation, options)
    batch = economical_batch(lambda batch: seconds(cores, batch), settings.max_batch, settings.slo_s)
    batch_s = seconds(cores, batch)
    if not batch_s:
        return None

    def rate_rps(cores: int) -> float:
        return concurrency * batch / (seconds(cores, batch) or math.inf)

    if load_s is None:
        measured = profile is not None and settings.weight_mode in profile.loading
        load_s = profile.body_load_s(settings.weight_mode) if profile is not None and measured else FIRST_LOAD_S
    if not lends(observation, options):
        one_rps = rate_rps(cores)
        return Speed(tuple(one_rps * bodies for bodies in range(settings.scale.max + 1)), batch_s, load_s)
    return Speed(_on_borrowed_cores(observation, cores, rate_rps), batch_s, load_s)


def _on_borrowed_cores(observation: Observation, cores: int, rate_rps: Callable[[int], float]) -> tuple[float, ...]:
    """The throughput of 0, 1, 2, … Bodies that borrow up to `cores` of their nodes: as many on a node as have those at once.

    A node has one more Body only where it has fewer cores than that. Any other would share the cores of those that are there, and
    the latency of all would be unpredictable. Nodes take turns, the one with most cores first.
    """
    claimed = Counter[str]()
    for body in observation.live:
        # The cores of the function's own Bodies are available to its Bodies.
        claimed[body.node] += body.cores if body.idle_cores is None else body.idle_cores
    left = sorted((free for node in observation.nodes if (free := int(node.free_cores + claimed[node.name])) > 0), reverse=True)
    turns = range(max(1, left[0] // cores)) if left else ()
    sizes = [min(cores, free) for turn in turns for free in left if turn < max(1, free // cores)]
    return tuple(accumulate(map(rate_rps, sizes[: observation.settings.scale.max]), initial=0.0))


def lends(observation: Observation, options: Options) -> bool:
    """Return whether Bodies borrow cores for each batch: if each node lends them, and the model's engine can use them."""
    return (
        options.lending
        and observation.profile is not None
        and can_borrow(observation.profile.engine)
        and bool(observation.nodes)
        and all(node.lends for node in observation.nodes)
    )


def body_cores(observation: Observation, options: Options) -> int:
    """The cores of a Body. If they are borrowed: the most that a node has and the profile covers, up to `gnomon/max-cores`."""
    settings, profile = observation.settings, observation.profile
    largest = min(settings.max_cores, max((node.cores for node in observation.nodes), default=settings.cores))
    if profile is None or not lends(observation, options):
        return settings.cores
    known = (cores for cores in range(largest, 0, -1) if profile.whole.at(cores, 1) is not None)
    return next(known, settings.cores)


def _by_concurrency(observation: Observation, remembered: dict[str, StateValue]) -> DesiredCount:
    """The number of Bodies while no latency is known: those that execute all requests in the system at once."""
    load = observation.history.mean(observation.history.concurrency, CONCURRENCY_S)
    concurrency = max([one.concurrency for one in observation.ready], default=observation.settings.expected_concurrency)
    one = float(concurrency * observation.settings.max_batch)
    count = max(1, whole(load / one))
    return DesiredCount(count, f"latency not known yet: {load:.2f} in the system, {one:g} in a Body: {count}", remembered)


def _observed_starts(observation: Observation, memory: Memory) -> dict[str, StateValue]:
    """The load time by Bodies that were starting at the last decision and are ready now, as a decaying maximum.

    Half a period is subtracted, the mean time between readiness and its observation.
    """
    before = _names_in(memory, "starting")
    starting = sorted(body.id for body in observation.live if body.state is InstanceState.STARTING)
    took_s = [max(0.0, observation.now_s - body.started_s - PERIOD_S / 2) for body in observation.ready if body.id in before]
    load_s = timestamp_in(memory, "load_s")
    if took_s:
        load_s = max(took_s) if load_s is None else max(*took_s, 0.8 * load_s + 0.2 * max(took_s))
    return {"starting": tuple(starting), "load_s": load_s}


def _names_in(memory: Memory, key: str) -> set[str]:
    names = memory.get(key)
    return {str(name) for name in names} if isinstance(names, tuple) else set()


def _rule_in(memory: Mapping[str, StateValue]) -> Rule | None:
    floor, factor, hold_s, loss = count_in(memory, "floor"), *(timestamp_in(memory, key) for key in ("factor", "hold_s", "loss"))
    if floor is None or factor is None or hold_s is None or loss is None:
        return None
    return Rule(floor, factor, hold_s, loss, shadows=bool(memory.get("shadows")))


def _speed_in(memory: Mapping[str, StateValue]) -> Speed | None:
    rates_rps, batch_s, load_s = memory.get("rates_rps"), timestamp_in(memory, "batch_s"), timestamp_in(memory, "loads_s")
    if not isinstance(rates_rps, tuple) or not rates_rps or batch_s is None or load_s is None:
        return None
    return Speed(cast("tuple[float, ...]", rates_rps), batch_s, load_s)


def _extreme(
    memory: Mapping[str, StateValue], key: str, now: tuple[float, int], window_s: float, exceeds: Callable[[int, int], bool]
) -> list[tuple[float, int]]:
    """The extreme of the last `window_s` first, then the counts that may still become it; the present one, `now`, is the last."""
    now_s, count = now
    recent = [(at_s, kept) for at_s, kept in counts_in(memory, key) if now_s - at_s < window_s and exceeds(kept, count)]
    return [*recent, now]


def _entries(key: str, counts: Sequence[tuple[float, int]]) -> dict[str, StateValue]:
    """Counts with their times as `counts_in` reads them."""
    return {f"{key}_at_s": tuple(at_s for at_s, _ in counts), key: tuple(count for _, count in counts)}


@dataclass(frozen=True, slots=True)
class _NestedMemory(Wrapper):
    """A wrapper that keeps the memory under `inner`: the format of saved states."""

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:
        desired = self.wrapped.desired_count(observation, inner_memory(memory))
        return replace(desired, memory={"inner": desired.memory})


class Gnomon(ReplicaPolicyAdapter):
    """The scaling policy: the number by `Bodies` within the wrappers of every policy, in Bodies as large as their nodes allow."""

    # A replay of five minutes of arrivals takes too long for the event loop, where it would delay every request.
    is_quick = False

    def __init__(self, options: Options) -> None:
        self._pairs = Pairs()
        super().__init__(_NestedMemory(standard(Bodies(options, self._pairs))))
        self.options = options

    def decide(self, observation: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Actions towards the number of Bodies, and the Shadows that they need meanwhile."""
        desired = self._policy.desired_count(observation, memory_of(state, self.name, self.version))
        bodies = self.actions(desired.count, observation)
        level = self._shadows(_wanted(desired.memory), observation, bodies)
        # Shadows first: they are urgent, and a refused Body must not delay them.
        actions = (*level.released, *level.created, *bodies)
        reason = "; ".join(text for text in (desired.reason, level.reason) if text)
        return Decision(actions, reason, desired.count), PolicyState(self.name, self.version, desired.memory)

    def actions(self, count: int, observation: Observation) -> tuple[Action, ...]:
        bodies = self._towards(count, observation)
        ending = {action.id for action in bodies if isinstance(action, DestroyBody)}
        return (*self._borrowing(observation, ending), *bodies)

    def _shadows(self, wanted: int | None, observation: Observation, bodies: Sequence[Action]) -> LayerLevel:
        """The Shadows for what the ready Bodies lack, in the capacity that the new Bodies leave."""
        if wanted is None and not observation.shadows:
            return LayerLevel()
        ending = {action.id for action in bodies if isinstance(action, DestroyBody)}
        capacity = FreeCapacity(observation.nodes)
        memory_bytes = max((body.memory_bytes for body in observation.live), default=0)
        for action in bodies:
            if isinstance(action, CreateBody) and action.node is not None:
                capacity.take(action.node, action.cores, memory_bytes)
        return shadows_for(wanted, self._pairs, observation, ending, capacity)

    def _borrowing(self, observation: Observation, ending: set[str]) -> tuple[Resize, ...]:
        """Resizes of Bodies with cores of their own, such as those of a former policy, which borrow cores from now on.

        Busy Bodies too: one under steady load is never idle when the policy looks. Without lending, Bodies that borrow have the
        function's own cores from now on.
        """
        if not lends(observation, self.options):
            return own_cores(observation)
        cores = body_cores(observation, self.options)
        own = [body for body in observation.ready if body.idle_cores is None and body.id not in ending]
        return tuple(Resize(body.id, cores, IDLE_CORES) for body in own)

    def _towards(self, count: int, observation: Observation) -> tuple[Action, ...]:
        missing = count - len(observation.live)
        if missing <= 0 or not lends(observation, self.options):
            return actions_towards(count, observation)
        return _borrowers(missing, body_cores(observation, self.options), observation)


def _borrowers(number: int, cores: int, observation: Observation) -> tuple[CreateBody, ...]:
    """New Bodies that borrow up to `cores`, each on the node where most are left once all borrow what they may."""
    capacity = FreeCapacity(observation.nodes)
    for body in observation.live:
        if body.idle_cores is not None:
            capacity.take(body.node, body.cores - body.idle_cores)
    memory_bytes = max((instance.memory_bytes for instance in observation.instances), default=0)
    created: list[CreateBody] = []
    for _ in range(number):
        node = capacity.best_node(cores, memory_bytes) or capacity.best_node(IDLE_CORES, memory_bytes)
        if node is not None:
            capacity.take(node, cores, memory_bytes)
        # With None, as all cores are in use or lent, the platform decides, and may refuse.
        created.append(CreateBody(cores, node, idle_cores=IDLE_CORES))
    return tuple(created)


def _wanted(memory: Memory) -> int | None:
    """The number of Bodies whose worth of answers is wanted, some of it by Shadows; None if no Shadows are."""
    while inner := inner_memory(memory):
        memory = inner
    return count_in(memory, "wanted")


def gnomon(settings: Settings) -> Gnomon:
    """The policy for a function with these settings."""
    return Gnomon(Options().without(settings.without))
