"""`gnomon`: as few Bodies as would have kept the objective in the last minutes. The objective is all that it is told.

**How many.** The arrivals of the last five minutes are replayed against rules (`replay`): so many Bodies always, more where the
last second brought more, kept for a while. The rule with the fewest Bodies that would have lost at most one request in a thousand
is followed until the next replay, five seconds later. So the headroom is what the load's own bursts ask for: none for a steady
load, much for a bursty one, and no factor that somebody has to tune.

    last five minutes ─▶ replay of each rule ─▶ rule (F, f, h) ─▶ n = max(F, ⌈f · last second ÷ R⌉), h seconds long
                                                                  └─ and more while more waits than the rule expects

A short history counts for what it is: of N arrivals, N + 2·√N are expected, which is much for a few of them and nothing for many.

**How large.** A Body is as large as its node allows, up to `gnomon/max-cores`: memory is the number of Bodies, and a Body of all
cores needs least of it. Where nodes lend cores, a Body keeps one core and borrows for each batch as many as that needs, so that
what is idle costs no cores (scheduler `economical`).

**What it knows.** R is the rate of the smallest batch that is about as good as any, by the model's profile or by the latencies
that the gateway has learned; without either, Bodies are counted by the requests in the system. The load
time is that of the profile until starts have been observed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import cast

from gnomon_autoscaler.policies.gnomon.options import Options
from gnomon_autoscaler.policies.gnomon.replay import Rule, Speed, cheapest, never_wait_long, window
from gnomon_autoscaler.replica_policy import (
    DesiredCount,
    FreeCapacity,
    Memory,
    ReplicaPolicy,
    actions_towards,
    count_in,
    counts_in,
    creations,
    inner_memory,
    timestamp_in,
    whole,
    within_period,
)
from gnomon_autoscaler.wrappers import standard
from gnomon_core.fleet import InstanceState
from gnomon_core.scaling import Action, Decision, DestroyBody, DestroyShadow, Observation, PolicyState, Resize, StateValue
from gnomon_core.scheduling import economical_batch
from gnomon_core.settings import Settings

VERSION = 1
PERIOD_S = 0.5
IDLE_CORES = 1
"""Cores that a Body keeps between its batches, where it borrows the others."""
FIRST_LOAD_S = 1.0
"""The load time of a Body while none has been observed and no profile says it."""
CONCURRENCY_S = 6.0
"""The window by which Bodies are counted while no latency is known."""
HALF = 0.5
"""Share of what the objective lets wait from which waiting requests call for more Bodies."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """The replica policy: how many Bodies, whatever their size."""

    options: Options
    name: str = "gnomon"
    version: int = VERSION
    period_s: float = PERIOD_S
    default_scheduler: str = "economical"

    def desired_count(self, seen: Observation, memory: Memory) -> DesiredCount:
        remembered = dict(memory) | _observed_starts(seen, memory)
        if within_period(timestamp_in(memory, "renewed_at_s"), self.options.renew_s, seen.now_s):
            speed, rule = _speed_in(memory), _rule_in(memory)
            if speed is not None and rule is not None:
                return self._followed(seen, speed, rule, remembered)
        speed = speed_of(seen, self.options, timestamp_in(remembered, "load_s"))
        if speed is None:
            return _by_concurrency(seen, remembered)
        rule = self._rule(seen, speed)
        remembered |= {"renewed_at_s": seen.now_s, "floor": rule.floor, "factor": rule.factor, "hold_s": rule.hold_s}
        remembered |= {"loss": rule.loss, "rates_rps": speed.rates_rps, "batch_s": speed.batch_s, "loads_s": speed.load_s}
        return self._followed(seen, speed, rule, remembered)

    def _rule(self, seen: Observation, speed: Speed) -> Rule:
        """The rule that the last minutes' arrivals ask for."""
        history, scale, slo_s = seen.history, seen.settings.scale, seen.settings.slo_s
        arrivals = self._expected(history.arrivals[-round(self.options.window_s / history.bin_s) :])
        least, most = max(1, scale.min), max(1, scale.max)
        if never_wait_long(arrivals, history.bin_s, speed.rate_rps(least), slo_s - speed.batch_s):
            return Rule(least, 0.0, 0.0, 0.0, float(least))
        points = window(arrivals, history.bin_s, slo_s - speed.batch_s)
        return cheapest(points, speed, slo_s, self.options.loss, least=least, most=most, reacts=self.options.reaction)

    def _expected(self, arrivals: Sequence[float]) -> Sequence[float]:
        """The window's arrivals, and as many more as its count is uncertain by."""
        total = sum(arrivals)
        if not self.options.uncertainty or total <= 0:
            return arrivals
        factor = 1 + self.options.spread / math.sqrt(total)
        return [factor * count for count in arrivals]

    def _followed(self, seen: Observation, speed: Speed, rule: Rule, remembered: dict[str, StateValue]) -> DesiredCount:
        history = seen.history
        last_rps = history.rate_rps(history.arrivals, 1.0)
        reacted = speed.bodies(rule.factor * last_rps) if rule.factor > 0 else 0
        held = _held(remembered, seen.now_s, reacted, rule.hold_s)
        highest = max([count for _, count in held], default=0)
        remembered |= {"held_at_s": tuple(at_s for at_s, _ in held), "held": tuple(count for _, count in held)}
        waits = self._of_queue(seen, speed)
        count = max(rule.floor, highest, waits)
        text = f"{last_rps:.1f} rps, a Body answers {speed.rate_rps(1):.2f}: {rule.floor}"
        if rule.factor > 0:
            text += f" or {rule.factor:g} × for {rule.hold_s:g} s = {max(rule.floor, highest)}"
        text += f", replayed {rule.loss:.2%} late"
        if waits > max(rule.floor, highest):
            text += f"; {seen.queued} wait: {waits}"
        return DesiredCount(count, text, remembered)

    def _of_queue(self, seen: Observation, speed: Speed) -> int:
        """The Bodies that answer the queue in time, if it exceeds half of what the serving Bodies answer in time."""
        if not self.options.queue or not seen.queued:
            return 0
        wait_s = max(speed.batch_s, seen.settings.slo_s - speed.batch_s)
        if seen.queued <= HALF * speed.rate_rps(max(1, len(seen.ready))) * wait_s:
            return 0
        return speed.bodies(seen.history.rate_rps(seen.history.arrivals, 1.0) + seen.queued / wait_s)


def speed_of(seen: Observation, options: Options, load_s: float | None) -> Speed | None:
    """The throughput of Bodies; None if neither a profile nor a measurement gives it."""
    settings, profile = seen.settings, seen.profile

    def seconds(cores: int, batch: int) -> float | None:
        known = profile.whole.at(cores, batch) if profile is not None else None
        if known is None and cores == settings.cores and 0 < batch <= len(seen.latency_s):
            return seen.latency_s[batch - 1]
        return known

    concurrency = max([one.concurrency for one in seen.ready], default=settings.expected_concurrency)
    cores = body_cores(seen, options)
    batch = economical_batch(lambda batch: seconds(cores, batch), settings.max_batch, settings.slo_s)
    batch_s = seconds(cores, batch)
    if not batch_s:
        return None

    def rate_rps(cores: int) -> float:
        return concurrency * batch / (seconds(cores, batch) or math.inf)

    if load_s is None:
        measured = profile is not None and settings.weight_mode in profile.loading
        load_s = profile.body_load_s(settings.weight_mode) if profile is not None and measured else FIRST_LOAD_S
    if not lends(seen, options):
        one_rps = rate_rps(cores)
        return Speed(tuple(one_rps * bodies for bodies in range(settings.scale.max + 1)), batch_s, load_s)
    return Speed(_on_borrowed_cores(seen, cores, rate_rps), batch_s, load_s)


def _on_borrowed_cores(seen: Observation, cores: int, rate_rps: Callable[[int], float]) -> tuple[float, ...]:
    """The throughput of 0, 1, 2, … Bodies that borrow their nodes' cores: one on each node, the node with most cores first.

    A second one there would only share them, and nobody could predict how long a batch of either takes.
    """
    claimed = Counter[str]()
    for body in seen.live:
        claimed[body.node] += body.cores if body.idle_cores is None else body.idle_cores
    left = sorted((int(node.free_cores + claimed[node.name]) for node in seen.nodes), reverse=True)
    ones_rps = [rate_rps(min(cores, free)) for free in left[: seen.settings.scale.max] if free > 0]
    return tuple(accumulate(ones_rps, initial=0.0))


def lends(seen: Observation, options: Options) -> bool:
    """Return whether Bodies borrow cores for each batch."""
    return options.lending and seen.profile is not None and bool(seen.nodes) and all(node.lends for node in seen.nodes)


def body_cores(seen: Observation, options: Options) -> int:
    """The most cores of a Body: all of a node up to `gnomon/max-cores` that the profile knows, where they are borrowed."""
    settings, profile = seen.settings, seen.profile
    largest = min(settings.max_cores, max((node.cores for node in seen.nodes), default=settings.cores))
    if profile is None or not lends(seen, options):
        return settings.cores
    known = (cores for cores in range(largest, 0, -1) if profile.whole.at(cores, 1) is not None)
    return next(known, settings.cores)


def _by_concurrency(seen: Observation, remembered: dict[str, StateValue]) -> DesiredCount:
    """While no latency is known: as many as execute the requests in the system at once."""
    load = seen.history.mean(seen.history.concurrency, CONCURRENCY_S)
    concurrency = max([one.concurrency for one in seen.ready], default=seen.settings.expected_concurrency)
    one = float(concurrency * seen.settings.max_batch)
    count = max(1, whole(load / one))
    return DesiredCount(count, f"latency not known yet: {load:.2f} in the system, {one:g} in a Body: {count}", remembered)


def _observed_starts(seen: Observation, memory: Memory) -> dict[str, StateValue]:
    """The load time, from Bodies that started at the last look and serve now: the longest of late.

    They have served for half a look on average.
    """
    starting = memory.get("starting")
    before = set(starting) if isinstance(starting, tuple) else set()
    now = tuple(body.id for body in seen.live if body.state is InstanceState.STARTING)
    took_s = [max(0.0, seen.now_s - body.started_s - PERIOD_S / 2) for body in seen.ready if body.id in before]
    load_s = timestamp_in(memory, "load_s")
    if took_s:
        load_s = max(took_s) if load_s is None else max(*took_s, 0.8 * load_s + 0.2 * max(took_s))
    return {"starting": now, "load_s": load_s}


def _rule_in(memory: Mapping[str, StateValue]) -> Rule | None:
    floor, factor, hold_s, loss = count_in(memory, "floor"), *(timestamp_in(memory, key) for key in ("factor", "hold_s", "loss"))
    if floor is None or factor is None or hold_s is None or loss is None:
        return None
    return Rule(floor, factor, hold_s, loss)


def _speed_in(memory: Mapping[str, StateValue]) -> Speed | None:
    rates_rps, batch_s, load_s = memory.get("rates_rps"), timestamp_in(memory, "batch_s"), timestamp_in(memory, "loads_s")
    if not isinstance(rates_rps, tuple) or not rates_rps or batch_s is None or load_s is None:
        return None
    return Speed(cast("tuple[float, ...]", rates_rps), batch_s, load_s)


def _held(memory: Mapping[str, StateValue], now_s: float, count: int, hold_s: float) -> list[tuple[float, int]]:
    """The reaction's numbers that still hold, falling from the oldest to the newest, with the present one."""
    recent = [(at_s, held) for at_s, held in counts_in(memory, "held") if now_s - at_s < hold_s and held > count]
    return [*recent, (now_s, count)]


class Gnomon:
    """The scaling policy: the number by `Bodies` within the wrappers of every policy, in Bodies as large as their nodes allow."""

    needs: frozenset[str] = frozenset()

    def __init__(self, options: Options) -> None:
        self.name = "gnomon"
        self.version = VERSION
        self.options = options
        self.period_s = PERIOD_S
        self.default_scheduler = "economical"
        self._bodies: ReplicaPolicy = standard(Bodies(options))

    def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        memory: Memory = state.values if (state.policy, state.version) == (self.name, self.version) else {}
        desired = self._bodies.desired_count(seen, inner_memory(memory))
        shadows = tuple(DestroyShadow(shadow.id) for shadow in seen.shadows)
        bodies = self._towards(desired.count, seen)
        ending = {action.id for action in bodies if isinstance(action, DestroyBody)}
        actions = (*shadows, *self._borrowing(seen, ending), *bodies)
        return Decision(actions, desired.reason, desired.count), PolicyState(self.name, self.version, {"inner": desired.memory})

    def _borrowing(self, seen: Observation, ending: set[str]) -> tuple[Resize, ...]:
        """Bodies with cores of their own, such as those of another policy, give them back while they are idle."""
        if not lends(seen, self.options):
            return ()
        cores = body_cores(seen, self.options)
        own = [body for body in seen.ready if body.idle_cores is None and not body.busy and body.id not in ending]
        return tuple(Resize(body.id, cores, IDLE_CORES) for body in own)

    def _towards(self, count: int, seen: Observation) -> tuple[Action, ...]:
        missing = count - len(seen.live)
        if missing <= 0 or not lends(seen, self.options):
            return actions_towards(count, seen)
        cores = body_cores(seen, self.options)
        return tuple(
            replace(action, cores=cores, idle_cores=IDLE_CORES)
            for action in creations(missing, IDLE_CORES, seen, FreeCapacity(seen.nodes))
        )


def gnomon(settings: Settings) -> Gnomon:
    """The policy for a function with these settings."""
    return Gnomon(Options().without(settings.without))
