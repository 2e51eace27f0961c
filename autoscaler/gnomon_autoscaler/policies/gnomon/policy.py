"""`gnomon`: the fewest Bodies that would have met the objective in the last minutes. The latency objective is its only parameter.

**The number of Bodies.** The arrivals of the last five minutes are replayed against rules (`replay`): a floor, and a reaction to
the last second's rate that is held for some time. The rule with the fewest Bodies that would have lost at most one request in a
thousand is followed until the load has changed. The headroom thus follows the load's own bursts, without a factor to tune: none
for a steady load, much for a bursty one.

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

**Work is done where something has changed.** A half second that brings more than any that was replayed calls for a search.
Every five seconds a rule is checked: where the number of arrivals in the window has moved by more than its uncertainty, √N, all
rules are replayed again, and after a minute in any case. After a quarter of a minute only the rule itself is replayed, and kept
if it loses no more than allowed; the least Bodies are kept for up to a minute. Between two checks most looks find a steady state
(`_Steady`): all Bodies that are wanted are ready, and neither the last second nor the queue calls for others.

**Inputs.** R is the rate of the smallest batch with about the best throughput, by the model's profile or by the latencies that
the gateway has learned; without either, Bodies are counted by the requests in the system. The load time is that of the profile
until starts have been observed. An objective that a batch alone exceeds counts as the time of two batches: every request is late,
and further Bodies, as many as there may be, would change nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import accumulate
from typing import NamedTuple, TypeAlias, cast

import numpy as np

from gnomon_autoscaler.policies.gnomon.replay import (
    Help,
    Rule,
    Speed,
    Vector,
    Window,
    cheapest,
    lost_by,
    never_wait_long,
    window,
)
from gnomon_autoscaler.policies.gnomon.shadows import Pairs, help_of, with_shadows
from gnomon_autoscaler.replica_policy import (
    TOLERANCE_S,
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
    History,
    Observation,
    PolicyState,
    Resize,
    StateValue,
)
from gnomon_core.scheduling import economical_batch
from gnomon_core.settings import Settings


@dataclass(frozen=True, slots=True)
class Options:
    """The mechanisms of `gnomon`; a user sets none of them but `without`.

    `loss` is the share of requests that a rule may have lost in the window of `window_s`. Every `renew_s` the rule is checked,
    and a new one is chosen if the load has changed. After half of `keep_s` to all of it the rule is replayed, and a new one is
    chosen if this one loses too much; that time doubles up to `longest_keep_s` while the rule is that of the least Bodies. After
    half of `longest_keep_s` to all of it the speed of Bodies is computed and a rule chosen in any case.
    `spread` is how many standard deviations of the count more than the window's arrivals are expected.

    `reaction`: rules follow the arrivals of the last second; else the number is a floor. `uncertainty`: see `spread`. `queue`:
    what waits counts beside the rule. `lending`: where nodes lend cores, a Body borrows up to all cores of its node for each
    batch; else it has the function's own number. `shadows`: rules may meet a reaction with Shadows until Bodies have started.
    """

    loss: float = 0.001
    window_s: float = 300.0
    renew_s: float = 5.0
    keep_s: float = 15.0
    longest_keep_s: float = 60.0
    spread: float = 2.0
    reaction: bool = True
    uncertainty: bool = True
    queue: bool = True
    lending: bool = True
    shadows: bool = True

    def without(self, names: tuple[str, ...]) -> Options:
        """Return the options with the named mechanisms disabled."""
        return replace(self, **dict.fromkeys(names, False))


VERSION = 1
PERIOD_S = 0.5
IDLE_CORES = 1
"""The cores that a Body keeps between batches if it borrows the others."""
FIRST_LOAD_S = 1.0
"""The load time of a Body in seconds if none has been observed and no profile has one."""
CONCURRENCY_S = 6.0
"""The window by which Bodies are counted while no latency is known."""
ANY_RPS = NEVER_S = 1e18
"""Infinite rate and time in the policy's memory: JSON has no infinity."""
GOLDEN = 0.6180339887498949
ALIKE = 0.1
"""The share by which a measured time may change before the rule is replayed again."""
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
        remembered: dict[str, StateValue] = {**memory, **_observed_starts(observation, memory), "wanted": None, "calm": None}
        speed, rule, surged = _speed_in(memory), _rule_in(memory), None
        if speed is not None and rule is not None and memory.get("settings") == _settings_of(observation):
            # Between two replays only the last second's rate is new, which `_followed` applies to the rule.
            checked = within_period(timestamp_in(memory, "checked_at_s"), self.options.renew_s, observation.now_s)
            if checked and self._surges(observation, memory):
                surged = rule  # a burst for which it was not chosen
            elif checked:
                return self._followed(observation, speed, rule, remembered)
            if self.holds(observation, remembered):
                return self._followed(observation, speed, rule, remembered | {"checked_at_s": observation.now_s})
            if self._is_still_enough(observation, speed, rule, remembered):
                remembered |= _renewed(observation.now_s, self._window(observation), self._keep_s(observation, memory, rule))
                return self._followed(observation, speed, rule, remembered)
        speed = speed_of(observation, self.options, timestamp_in(remembered, "load_s"))
        if speed is None:
            return _by_concurrency(observation, remembered)
        arrivals = self._window(observation)
        enough = self._least_is_enough(observation, speed, arrivals)
        rule = _least_rule(observation) if enough else self._rule(observation, speed, arrivals)
        # The window ends within a burst that it has not seen whole. Until the next check, a rule that wants more is not left.
        if surged is not None and wanted_by(surged, observation.history, speed) > wanted_by(rule, observation.history, speed):
            rule = surged
        keep_s = self._keep_s(observation, memory, rule)
        remembered |= {
            **_renewed(observation.now_s, arrivals, keep_s),
            "measured_at_s": observation.now_s,
            "settings": _settings_of(observation),
            "slowest_s": max(observation.latency_s, default=0.0),
            "floor": rule.floor,
            "factor": rule.factor,
            "hold_s": rule.hold_s,
            "shadows": rule.shadows,
            "loss": rule.loss,
            "rates_rps": speed.rates_rps,
            "batch_s": speed.batch_s,
            "loads_s": speed.load_s,
        }
        return self._followed(observation, speed, rule, remembered)

    def _keep_s(self, observation: Observation, memory: Memory, rule: Rule) -> float:
        """Seconds for which a rule is followed without a replay; twice the last ones where the least Bodies are enough again."""
        kept_s, before, least = timestamp_in(memory, "keep_s"), _rule_in(memory), _least_rule(observation)
        if kept_s is None or before is None or not (before.decides_as(least) and rule.decides_as(least)):
            return self.options.keep_s
        return min(self.options.longest_keep_s, 2 * kept_s)

    def _window(self, observation: Observation) -> Sequence[float]:
        """The counts of the arrivals that are replayed."""
        history = observation.history
        return history.arrivals[-round(self.options.window_s / history.bin_s) :]

    def _surges(self, observation: Observation, memory: Memory) -> bool:
        """Return whether the last half second has brought more than each that the last replay has seen."""
        return max(observation.history.arrivals[-1:], default=0.0) > (timestamp_in(memory, "highest") or 0.0)

    def holds(self, observation: Observation, remembered: Memory) -> bool:
        """Return whether a rule is followed on after a check, without a replay: for its time, while nothing has changed."""
        renewed_s, keep_s, total = (timestamp_in(remembered, key) for key in ("renewed_at_s", "keep_s", "total"))
        return (
            keep_s is not None
            and total is not None
            and within_period(renewed_s, _varied(keep_s, total), observation.now_s)
            and self._is_same_load(observation, remembered)
            and self._is_as_quick(observation, remembered)
        )

    def _is_same_load(self, observation: Observation, remembered: Memory) -> bool:
        """Return whether the load is that of the last replay.

        It is while the number of arrivals is within one standard deviation of what that has seen, and no half second since then
        has brought more than each of its window.
        """
        renewed_s, total, highest = (timestamp_in(remembered, key) for key in ("renewed_at_s", "total", "highest"))
        if renewed_s is None or total is None or highest is None:
            return False
        arrivals = self._window(observation)
        since = arrivals[-max(1, math.ceil((observation.now_s - renewed_s) / observation.history.bin_s)) :]
        return max(since, default=0.0) <= highest and abs(sum(arrivals) - total) <= math.sqrt(total)

    def _is_still_enough(self, observation: Observation, speed: Speed, rule: Rule, remembered: Memory) -> bool:
        """Return whether a rule whose time is over is followed on, so that no search is needed.

        The least Bodies are kept if they are enough. Any other rule is kept if the load is the same and the replay of this rule
        loses no more than allowed. A search, which may find a cheaper rule, follows when the speed is computed again.
        """
        if not self._is_as_quick(observation, remembered):
            return False
        arrivals = self._window(observation)
        if rule.decides_as(_least_rule(observation)):
            return self._least_is_enough(observation, speed, arrivals)
        if not self._is_same_load(observation, remembered):
            return False
        points, slo_s = self._points(observation, speed, arrivals), _objective_s(observation, speed)
        most, help_ = max(1, observation.settings.scale.max), partial(self._help, observation, speed)
        return lost_by(rule, points, speed, slo_s, most=most, help_=help_) <= self.options.loss

    def _is_as_quick(self, observation: Observation, remembered: Memory) -> bool:
        """Return whether Bodies start and answer as quickly as when their speed was computed, not long ago."""
        measured_s, load_s = (timestamp_in(remembered, key) for key in ("measured_at_s", "load_s"))
        measure_s = _varied(self.options.longest_keep_s, timestamp_in(remembered, "total") or 0.0)
        return (
            within_period(measured_s, measure_s, observation.now_s)
            and _alike(max(observation.latency_s, default=0.0), timestamp_in(remembered, "slowest_s"))
            and (load_s is None or _alike(load_s, timestamp_in(remembered, "loads_s")))
        )

    def _least_is_enough(self, observation: Observation, speed: Speed, arrivals: Sequence[float]) -> bool:
        """Return whether it takes no replay to see that the least Bodies are enough."""
        least, wait_s = observation.settings.scale.least, _objective_s(observation, speed) - speed.batch_s
        return never_wait_long(self._expected(arrivals), observation.history.bin_s, speed.rate_rps(least), wait_s)

    def _rule(self, observation: Observation, speed: Speed, arrivals: Sequence[float]) -> Rule:
        """The cheapest rule for the arrivals of the last minutes."""
        scale = observation.settings.scale
        return cheapest(
            self._points(observation, speed, arrivals),
            speed,
            _objective_s(observation, speed),
            self.options.loss,
            least=scale.least,
            most=max(1, scale.max),
            reacts=self.options.reaction,
            help_=partial(self._help, observation, speed),
        )

    def _points(self, observation: Observation, speed: Speed, arrivals: Sequence[float]) -> Window:
        """The window that is replayed: the expected arrivals, and their last half second for as long as requests may wait."""
        bin_s, wait_s = observation.history.bin_s, _objective_s(observation, speed) - speed.batch_s
        return window(_continued(self._expected(arrivals), bin_s, wait_s), bin_s, wait_s)

    def _help(self, observation: Observation, speed: Speed) -> Help | None:
        """The help of Shadows; none where Bodies borrow cores, which have all those of their nodes already."""
        if not self.options.shadows or observation.profile is None or lends(observation, self.options):
            return None
        return help_of(self.pairs, observation, speed.rate_rps(1))

    def _shadows_are_quicker(self, observation: Observation, speed: Speed) -> bool:
        found = self._help(observation, speed)
        return found is not None and found.load_s < speed.load_s

    def _expected(self, arrivals: Sequence[float]) -> Vector:
        """The window's arrivals, scaled up by the uncertainty of their number."""
        counts, total = np.asarray(arrivals, dtype=np.float64), sum(arrivals)
        return counts * (1 + self.options.spread / math.sqrt(total)) if self.options.uncertainty and total > 0 else counts

    def _followed(self, observation: Observation, speed: Speed, rule: Rule, remembered: dict[str, StateValue]) -> DesiredCount:
        history = observation.history
        # One second: the time after which the rule reacts, as in the replay.
        last_rps = history.rate_rps(history.arrivals, 1.0)
        reacted, held_s = reaction(history, speed, rule)
        ruled = max(rule.floor, reacted)
        waits = self._of_queue(observation, speed)
        count = max(ruled, waits)
        text = f"{last_rps:.1f} rps, a Body answers {speed.rate_rps(1):.2f}: {rule.floor}"
        if rule.factor > 0:
            text += f" or {rule.factor:g} × for {rule.hold_s:g} s = {ruled}"
        text += f", replayed {rule.loss:.2%} late"
        if waits > ruled:
            text += f"; {observation.queued} wait: {waits}"
        now = (observation.now_s, count)
        if rule.shadows:
            lasting = _extreme(remembered, "lasting", now, speed.load_s, operator.lt)
            remembered |= _entries("lasting", lasting) | {"wanted": count}
            count = max(rule.floor, lasting[0][1], waits)
            text += f"; {count} Bodies and Shadows until this has lasted for {speed.load_s:.2g} s" if count < now[1] else ""
        else:
            # More waits than the rule expects: Shadows are there before the next replay, and before a Body. Where they are not
            # quicker, the Bodies stay for as long as they load: the first ones empty the queue, and the burst goes on.
            urgent = _extreme(remembered, "urgent", (now[0], waits if waits > ruled else 0), speed.load_s, operator.gt)
            called = urgent[0][1]
            quicker = called > 0 and self._shadows_are_quicker(observation, speed)
            remembered |= _entries("urgent", urgent) | {"wanted": max(count, called) if quicker else None}
            if called > count and not quicker:
                text += f"; {called} have been called by what waited, and load for {speed.load_s:.2g} s"
                count = called
            if not called:
                until_s = observation.now_s + held_s if ruled > rule.floor else NEVER_S
                highest = timestamp_in(remembered, "highest") or 0.0
                calm = (ruled, _calm_rps(speed, rule, ruled), self._calm_queue(observation, speed), highest)
                remembered |= {"calm": calm, "calm_until_at_s": until_s}
        return DesiredCount(count, text, remembered)

    def _of_queue(self, observation: Observation, speed: Speed) -> int:
        """The Bodies that answer the queue in time, if it exceeds half of what the serving Bodies answer in time."""
        if not self.options.queue or not observation.queued:
            return 0
        if observation.queued <= self._calm_queue(observation, speed):
            return 0
        wait_s = max(speed.batch_s, observation.settings.slo_s - speed.batch_s)
        return speed.bodies(observation.history.rate_rps(observation.history.arrivals, 1.0) + observation.queued / wait_s)

    def _calm_queue(self, observation: Observation, speed: Speed) -> float:
        """The longest queue that requires no more Bodies."""
        wait_s = max(speed.batch_s, observation.settings.slo_s - speed.batch_s)
        return HALF * speed.rate_rps(max(1, len(observation.ready))) * wait_s


def _objective_s(observation: Observation, speed: Speed) -> float:
    """The objective that is replayed; the time of two batches where one alone exceeds the function's own."""
    slo_s = observation.settings.slo_s
    return slo_s if slo_s > speed.batch_s else 2 * speed.batch_s


def _continued(arrivals: Vector, bin_s: float, for_s: float) -> Vector:
    """The window with its last bin repeated for as long as requests may wait.

    What waits at the end of the window would be answered in time by few Bodies if nothing came after it: a burst that has just
    begun must not count as one that is over.
    """
    return np.concatenate((arrivals, np.repeat(arrivals[-1:], math.ceil(max(0.0, for_s) / bin_s))))


def reaction(history: History, speed: Speed, rule: Rule) -> tuple[int, float]:
    """The Bodies that the rule's reaction wants, and for how many seconds it does if no second brings more."""
    if rule.factor <= 0.0:
        return 0, 0.0
    back, bins = (max(1, round(span_s / history.bin_s)) for span_s in (1.0, rule.hold_s))
    counts = list(history.arrivals[-(back + bins - 1) :])
    ends = range(max(1, len(counts) - bins + 1), len(counts) + 1)
    seconds = [sum(counts[max(0, end - back) : end]) for end in reversed(ends)] or [0.0]
    highest = max(seconds)
    return speed.bodies(rule.factor * highest / (back * history.bin_s)), (bins - seconds.index(highest)) * history.bin_s


def wanted_by(rule: Rule, history: History, speed: Speed) -> int:
    """The Bodies that a rule wants now."""
    return max(rule.floor, reaction(history, speed, rule)[0])


def _least_rule(observation: Observation) -> Rule:
    least = observation.settings.scale.least
    return Rule(least, 0.0, 0.0, 0.0, float(least))


def _calm_rps(speed: Speed, rule: Rule, bodies: int) -> float:
    """The highest rate of a second to which the rule reacts with no more than these Bodies."""
    unbounded = rule.factor <= 0.0 or bodies >= speed.most
    return ANY_RPS if unbounded else speed.rate_rps(bodies) / rule.factor


def _renewed(now_s: float, arrivals: Sequence[float], keep_s: float) -> dict[str, StateValue]:
    """The entries by which a check sees whether the load has changed since a rule was chosen for this window."""
    load: dict[str, StateValue] = {"total": sum(arrivals), "highest": max(arrivals, default=0.0)}
    return load | {"renewed_at_s": now_s, "checked_at_s": now_s, "keep_s": keep_s}


def _varied(period_s: float, total: float) -> float:
    """Half of the period to all of it, by the number of arrivals: functions deployed together must not be replayed together."""
    return period_s * (0.5 + 0.5 * (total * GOLDEN % 1.0))


def _alike(now: float, before: float | None) -> bool:
    """Return whether a measured time has not changed by more than a tenth."""
    return before is not None and abs(now - before) <= ALIKE * before


def _settings_of(observation: Observation) -> tuple[StateValue, ...]:
    """The settings on which decisions depend: a rule, or a steady state, of other settings is not followed."""
    settings = observation.settings
    scale = settings.scale
    own = (settings.slo_s, settings.max_batch, settings.cores, settings.max_cores, settings.weight_mode)
    return (*own, settings.expected_concurrency, scale.min, scale.max, scale.zero, scale.zero_duration_s, scale.down_window_s)


def speed_of(observation: Observation, options: Options, load_s: float | None) -> Speed | None:
    """The throughput of Bodies; None if neither a profile nor a measurement gives it."""
    settings, profile = observation.settings, observation.profile

    def seconds(cores: int, batch: int) -> float | None:
        known = profile.whole.at(cores, batch) if profile is not None else None
        if known is None and cores == settings.cores and 0 < batch <= len(observation.latency_s):
            return observation.latency_s[batch - 1]
        return known

    # A ready instance reports its concurrency; before the first one, the settings' value is assumed.
    concurrency = max([instance.concurrency for instance in observation.ready], default=settings.expected_concurrency)
    borrows = lends(observation, options)
    cores = _largest_body(observation) if borrows else settings.cores
    batch = economical_batch(lambda batch: seconds(cores, batch), settings.max_batch, settings.slo_s)
    batch_s = seconds(cores, batch)
    if not batch_s:
        return None

    @cache
    def rate_rps(cores: int) -> float:
        return concurrency * batch / (seconds(cores, batch) or math.inf)

    if load_s is None:
        measured = profile is not None and settings.weight_mode in profile.loading
        load_s = profile.body_load_s(settings.weight_mode) if profile is not None and measured else FIRST_LOAD_S
    if not borrows:
        one_rps = rate_rps(cores)
        return Speed(tuple(one_rps * bodies for bodies in range(settings.scale.max + 1)), batch_s, load_s)
    return Speed(_on_borrowed_cores(observation, cores, rate_rps), batch_s, load_s)


def _on_borrowed_cores(observation: Observation, cores: int, rate_rps: Callable[[int], float]) -> tuple[float, ...]:
    """The throughput of 0, 1, 2, … Bodies that borrow up to `cores` of their nodes: as many on a node as have those at once.

    A node has one more Body only where it has fewer cores than that. Any other would share the cores of those that are there, and
    the latency of all would be unpredictable. Nodes take turns, the one with most cores first.
    """
    claimed: dict[str, int] = {}
    for body in observation.live:
        # The cores of the function's own Bodies are available to its Bodies.
        claimed[body.node] = claimed.get(body.node, 0) + (body.cores if body.idle_cores is None else body.idle_cores)
    free_cores = [int(node.free_cores + claimed.get(node.name, 0)) for node in observation.nodes]
    left = sorted([free for free in free_cores if free > 0], reverse=True)
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


def _largest_body(observation: Observation) -> int:
    """The cores of a Body that borrows: the most that a node has and the profile covers, up to `gnomon/max-cores`."""
    settings, profile = observation.settings, observation.profile
    largest = min(settings.max_cores, max([node.cores for node in observation.nodes], default=settings.cores))
    if profile is None:
        return settings.cores
    known = (cores for cores in range(largest, 0, -1) if profile.whole.at(cores, 1) is not None)
    return next(known, settings.cores)


def _by_concurrency(observation: Observation, remembered: dict[str, StateValue]) -> DesiredCount:
    """The number of Bodies while no latency is known: those that execute all requests in the system at once."""
    load = observation.history.mean(observation.history.concurrency, CONCURRENCY_S)
    concurrency = max([instance.concurrency for instance in observation.ready], default=observation.settings.expected_concurrency)
    per_body = float(concurrency * observation.settings.max_batch)
    count = max(1, whole(load / per_body))
    return DesiredCount(count, f"latency not known yet: {load:.2f} in the system, {per_body:g} in a Body: {count}", remembered)


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
        return DesiredCount(desired.count, desired.reason, {"inner": desired.memory})


class Gnomon(ReplicaPolicyAdapter):
    """The scaling policy: the number by `Bodies` within the wrappers of every policy, in Bodies as large as their nodes allow."""

    # A replay of five minutes of arrivals takes too long for the event loop, where it would delay every request.
    is_quick = False

    def __init__(self, options: Options) -> None:
        self._pairs = Pairs()
        self._bodies = Bodies(options, self._pairs)
        super().__init__(_NestedMemory(standard(self._bodies)))
        self.options = options
        # The state of the last look and what it says of a steady state: most looks come with the same one.
        self._state: PolicyState | None = None
        self._steady: _Steady | None = None

    def decide(self, observation: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Actions towards the number of Bodies, and the Shadows that they need meanwhile."""
        memory = memory_of(state, self.name, self.version)
        if state is not self._state:
            self._state, self._steady = state, _steady_in(memory)
        steady = self._steady
        if steady is not None and steady.lasts(observation):
            if within_period(steady.checked_s, self.options.renew_s, observation.now_s):
                return steady.decision, state
            if self._bodies.holds(observation, _innermost(memory)):
                checked = {**memory, "steady_at_s": (observation.now_s, steady.until_s)}
                return steady.decision, replace(state, values=checked)
        desired = self._policy.desired_count(observation, memory)
        bodies = self.actions(desired.count, observation)
        decision = with_shadows(desired, _wanted(desired.memory), self._pairs, observation, bodies)
        after = desired.memory if decision.actions else {**desired.memory, **self._steady_after(observation, desired)}
        return decision, PolicyState(self.name, self.version, after)

    def _steady_after(self, observation: Observation, desired: DesiredCount) -> Memory:
        """The steady state that this decision leaves, as `_steady_in` reads it; nothing where there is none."""
        scale, memory = observation.settings.scale, _innermost(desired.memory)
        calm = memory.get("calm")
        calm_until_s, checked_s = (timestamp_in(memory, key) for key in ("calm_until_at_s", "checked_at_s"))
        if not isinstance(calm, tuple) or calm_until_s is None or checked_s is None:
            return {}
        if not 0 < desired.count == calm[0] or observation.requested is not None or scale.down_window_s > 0:
            return {}
        until_s, active_s = calm_until_s, timestamp_in(desired.memory, "active_at_s")
        if active_s is not None and (scale.zero or scale.min == 0):
            until_s = min(until_s, active_s + scale.zero_duration_s)
        values = (*cast("tuple[int, float, float, float]", calm), _settings_of(observation), desired.reason)
        entries: Memory = {"steady_at_s": (checked_s, until_s), "steady": values}
        steady = _steady_in(entries)
        return entries if steady is not None and steady.lasts(observation) else {}

    def actions(self, count: int, observation: Observation) -> tuple[Action, ...]:
        bodies = self._towards(count, observation)
        ending = {action.id for action in bodies if isinstance(action, DestroyBody)}
        return (*self._borrowing(observation, ending), *bodies)

    def _borrowing(self, observation: Observation, ending: set[str]) -> tuple[Resize, ...]:
        """Resizes of Bodies with cores of their own, such as those of a former policy, which borrow cores from now on.

        Busy Bodies too: one under steady load is never idle when the policy looks. Without lending, Bodies that borrow have the
        function's own cores from now on.
        """
        if not lends(observation, self.options):
            return own_cores(observation)
        own = [body for body in observation.ready if body.idle_cores is None and body.id not in ending]
        return tuple(Resize(body.id, _largest_body(observation), IDLE_CORES) for body in own)

    def _towards(self, count: int, observation: Observation) -> tuple[Action, ...]:
        missing = count - len(observation.live)
        if missing <= 0 or not lends(observation, self.options):
            return actions_towards(count, observation)
        return _borrowers(missing, _largest_body(observation), observation)


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


class _Steady(NamedTuple):
    """A state in which the decision stays the same until `until_s`, as long as it `lasts`.

    The rule was checked at `checked_s`. All `bodies` are ready. Up to `rps` in a second and a queue of `queue` the rule wants
    neither more nor fewer. A half second that brings more than `highest`, that of the window, calls for a check at once. To see
    that a state lasts takes a tenth of the time of a decision.
    """

    checked_s: float
    until_s: float
    bodies: int
    rps: float
    queue: float
    highest: float
    settings: tuple[StateValue, ...]
    decision: Decision

    def lasts(self, observation: Observation) -> bool:
        """Return whether the function is still in this state."""
        history, instances = observation.history, observation.instances
        return (
            observation.requested is None
            and observation.now_s < self.until_s - TOLERANCE_S
            and len(instances) == self.bodies
            and observation.queued <= self.queue
            and (not history.arrivals or history.arrivals[-1] <= self.highest)
            and (self.rps == ANY_RPS or history.rate_rps(history.arrivals, 1.0) <= self.rps)
            and self.settings == _settings_of(observation)
            and len(observation.ready) == self.bodies
        )


_Remembered: TypeAlias = tuple[float, float, int, float, float, float, tuple[StateValue, ...], str]


def _steady_in(memory: Memory) -> _Steady | None:
    times, values = memory.get("steady_at_s"), memory.get("steady")
    if not isinstance(times, tuple) or not isinstance(values, tuple):
        return None
    checked_s, until_s, bodies, rps, queue, highest, settings, reason = cast("_Remembered", times + values)
    return _Steady(checked_s, until_s, bodies, rps, queue, highest, settings, Decision((), reason, bodies))


def _wanted(memory: Memory) -> int | None:
    """The number of Bodies whose worth of answers is wanted, some of it by Shadows; None if no Shadows are."""
    return count_in(_innermost(memory), "wanted")


def _innermost(memory: Memory) -> Memory:
    """The memory of `Bodies`, within those of the wrappers."""
    while inner := inner_memory(memory):
        memory = inner
    return memory


def gnomon(settings: Settings) -> Gnomon:
    """The policy for a function with these settings."""
    return Gnomon(Options().without(settings.without))
