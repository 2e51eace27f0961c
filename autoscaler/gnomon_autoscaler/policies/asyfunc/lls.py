"""Layer-level scaling, Algorithm 2: Shadows for a burst. At every tick, for the rate R_burst.

    while R_burst > γ·R_max    the next Body that serves alone, the largest first, gets the Shadow of best η on its node
    R_burst ≤ γ·R_max without it, for N ticks    the Shadow of least η is released

If `burst_cores` allows it, the Body may be enlarged instead, and is returned to its former size by the same rule. R_max counts
the Bodies that serve now, with the Shadows that they have or are about to have: a Body that is still loading serves nothing of
this burst. docs/decisions/0012-lls.md documents each point at which the printed algorithm is ambiguous, with a worked example.

**Demand.** R_burst is the rate that Bodies and Shadows must sustain now, so that every request ends within the objective.

    R_burst = max(arrivals / window, L / t_SLO)

The paper uses the arrivals alone, which ignores the backlog: after a burst beyond capacity the arrivals fall, Shadows are
released while requests still wait, these become late, and the next arrivals create the Shadows again. The second term counts the
backlog. L is the mean number of requests in the system in this window, waiting or in a batch. Each of them has to end within
t_SLO of its arrival, so all of them within t_SLO from now, which takes a rate of L / t_SLO. By Little's law (L = R·W) a system
that answers in time has W ≤ t_SLO, hence L / t_SLO ≤ R: the term then has no effect, and requests that wait for a full batch are
no backlog. The term exceeds the arrivals exactly if answers take longer than the objective.

Example: SLO 0.5 s, 10 rps arrive, 12 requests are in the system: 12 / 0.5 = 24 rps must be sustained. With 4 requests, 4 / 0.5 =
8 is below the arrivals, and 10 rps must be sustained.

**Several Shadows** per Body, which the paper does not have: `gnomon/max-shadows`, 1 by default.

    R_burst > γ·R_max, and no Body can get its first Shadow    the Body with the fewest, the largest first, gets another
    a Shadow has begun to serve, or has ended                  those that serve share each batch anew

All Shadows of a Body hold the same blocks, which were the best for its first Shadow. A further Shadow is created only if it
raises the Body's R_max and its batch fills and ends in time: on the Body's own node, or else on another node, network time
included. While it loads, the other Shadows keep their shares, so that a Body never becomes slower because a Shadow is being
created. docs/decisions/0014-several-shadows.md has a worked example.

**Growth.** Free cores of a node go to the Body itself for a burst, in place of a Shadow, and are given back afterwards.

    shadow    free cores are used for a Shadow (AsyFunc)
    resize    … for enlarging the Body: no loading and no hand-over, but the speed-up is limited by the model's parallelism
    either    … for the one of higher η

Both are compared as a whole, by line 7 of Algorithm 1: Body and Shadow have c_B + c_S cores and memory m + m_Φ, the larger Body
has c cores and memory m. Line 15 evaluates a Shadow alone, where cores without memory would have an infinite η.

The policy remembers the enlarged Bodies, their former cores and the time of each request for cores. On Kubernetes the kubelet
grants cores later; until then they count like a Shadow that is loading. A request that is neither granted nor pending was
refused: the Body then gets a Shadow if one is allowed. Model-level scaling observes Bodies at their former size and pairs without
their Shadows: otherwise a long burst would never lead to another Body. docs/decisions/0015-promotion-and-resizing.md has
examples.

**Nodes.** A Body's Shadow is placed on the Body's node if possible (section 3.4), else on another node, network time included.

    own node     the pairing of best η among those that raise the Body's R_max, fit the node and end in time
    elsewhere    only if there is none on its own node; hand-overs then include the profile's network time

The coordinator of the Body's node connects the Body to Shadows on any node: if that node makes no Shadows, none is requested on
another node either. A Shadow may use a node's reserve and its free capacity. On its Body's node a Shadow maps the Body's weights
if weights are shared; on another node it loads its blocks. docs/decisions/0016-shadow-on-another-node.md has worked examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from gnomon_autoscaler.policies.asyfunc.mls import Configuration, best_batch, filling_s
from gnomon_autoscaler.policies.asyfunc.options import BURST_WINDOW_S, Options
from gnomon_autoscaler.policies.asyfunc.pairing import GAIN, Knowledge, Pairing
from gnomon_autoscaler.replica_policy import ROUNDING, FreeCapacity, Memory, timestamp_in, within_period
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.pairs import Pair, together
from gnomon_core.scaling import ChangeShadow, CreateShadow, DestroyShadow, Observation, Resize, StateValue
from gnomon_core.units import many


def burst_rps(observation: Observation, options: Options, ticks_ago: int = 0) -> float:
    """R_burst at one of the last ticks."""
    arriving_rps, in_system = _window(observation, options, ticks_ago)
    return max(arriving_rps, in_system / observation.settings.slo_s)


@dataclass(frozen=True, slots=True)
class Demand:
    """The rate that Bodies and Shadows must sustain now, and the highest of the recent past, which no release may fall below."""

    now_rps: float
    peak_rps: float
    reason: str


def burst_demand(observation: Observation, options: Options) -> Demand:
    """R_burst now and in the last ticks: a single calm tick in the middle of a burst releases nothing."""
    recent_rps = [burst_rps(observation, options, ticks_ago) for ticks_ago in range(options.release_ticks)]
    return Demand(recent_rps[0], max(recent_rps), burst_reason(observation, options))


def burst_reason(observation: Observation, options: Options) -> str:
    """R_burst now, with its source, as a phrase for the reason."""
    (arriving_rps, in_system), slo_s = _window(observation, options, 0), observation.settings.slo_s
    if in_system / slo_s > arriving_rps:
        return f"burst of {in_system / slo_s:.2f} rps, for {in_system:.3g} requests to end in {slo_s * 1e3:g} ms"
    return f"burst of {arriving_rps:.2f} rps in {BURST_WINDOW_S * 1e3:g} ms"


def _window(observation: Observation, options: Options, ticks_ago: int) -> tuple[float, float]:
    """The rate of arrivals and L; 0 where what waits does not count."""
    history, window_s, until_s = observation.history, BURST_WINDOW_S, ticks_ago * options.tick_s
    arriving_rps = history.rate_rps(history.arrivals, window_s, until_s=until_s)
    in_system = history.mean(history.concurrency, window_s, until_s=until_s) if options.backlog else 0.0
    return arriving_rps, in_system


def best_pairing(
    knowledge: Knowledge, options: Options, body: Instance, rate_rps: float, capacity: FreeCapacity
) -> Pairing | None:
    """Lines 6 to 23 for one Body: the pairing of best η that fits a node and whose batch fills and ends in time."""
    burst = Burst(knowledge, options, rate_rps, capacity)
    return own_node_else_another(burst, body, lambda node: _best_on(node, body, burst))


class Candidate(Protocol):
    """A candidate configuration on a node; candidates are ranked by η."""

    @property
    def efficiency(self) -> float: ...


Found = TypeVar("Found", bound=Candidate)


def own_node_else_another(burst: Burst, body: Instance, best_on: Callable[[str], Found | None]) -> Found | None:
    """The best candidate on the Body's own node; if there is none, the one of best η on other nodes that may hold its Shadow."""
    on_own_node = best_on(body.node)
    cannot_connect = not burst.capacity.makes_shadows(body.node)
    if on_own_node is not None or burst.knowledge.pairings_elsewhere is None or cannot_connect:
        return on_own_node
    elsewhere = [pairing for node in burst.capacity.other_nodes(body.node) if (pairing := best_on(node)) is not None]
    # Of equally good nodes the one with most free capacity, which comes first.
    return max(elsewhere, key=lambda choice: choice.efficiency, default=None)


def shadow_memory_bytes(knowledge: Knowledge, options: Options, parameter_bytes: int, *, elsewhere: bool) -> int:
    """Memory of a Shadow on its node in bytes; on its Body's node shared weights add nothing: the Body maps them already."""
    mapped = options.weight_mode == "shared" and not elsewhere
    return knowledge.profile.memory_bytes(0 if mapped else parameter_bytes)


@dataclass(frozen=True, slots=True)
class Burst:
    """The input of a search for a Shadow: profile, options, the rate to serve, and the free capacity of the nodes."""

    knowledge: Knowledge
    options: Options
    rate_rps: float
    capacity: FreeCapacity


def _best_on(node: str, body: Instance, burst: Burst) -> Pairing | None:
    knowledge, options, elsewhere = burst.knowledge, burst.options, node != body.node
    pairings = knowledge.pairings_elsewhere if elsewhere else knowledge.pairings
    if pairings is None:
        return None
    fitting = [cores for cores in knowledge.rates.cores if cores <= burst.capacity.shadow_cores(node)]
    best: Pairing | None = None
    for cores in fitting if options.fewer_shadow_cores else fitting[-1:]:
        for pairing in pairings.ranked(body.cores, cores):
            if best is not None and pairing.efficiency <= best.efficiency:
                break
            timely = filling_s(pairing.batch, burst.rate_rps) + pairing.latency_s <= knowledge.rates.slo_s
            memory_bytes = shadow_memory_bytes(knowledge, options, pairing.parameter_bytes, elsewhere=elsewhere)
            if timely and memory_bytes <= burst.capacity.memory_bytes(node):
                best = pairing
                break
    return replace(best, pair=replace(best.pair, node=node)) if best is not None and elsewhere else best


WORTH = 0.05
"""Minimum relative gain of a new split: an online-corrected profile changes a little all the time."""


@dataclass(frozen=True, slots=True)
class FurtherShadow:
    """A further Shadow of a Body: its pair, their number with it, and the rate that all sustain."""

    pair: Pair
    count: int
    efficiency: float
    rate_rps: float
    gain_rps: float
    memory_bytes: int


def shadows_of(shadows: Iterable[Instance]) -> dict[str, list[Instance]]:
    """Shadows with a known pair, by Body."""
    by_body: dict[str, list[Instance]] = {}
    for shadow in shadows:
        if shadow.partner is not None and shadow.pair is not None:
            by_body.setdefault(shadow.partner, []).append(shadow)
    return by_body


def orphans(observation: Observation, ending: Collection[str]) -> tuple[DestroyShadow, ...]:
    """Shadows whose Body ends now or no longer serves."""
    live = {body.id for body in observation.live}
    return tuple(
        DestroyShadow(shadow.id) for shadow in observation.shadows if shadow.partner in ending or shadow.partner not in live
    )


def sharing(knowledge: Knowledge, options: Options, body: Instance, shadows: Sequence[Instance]) -> Pair | None:
    """The joint pair of a Body and these Shadows once they share its batches; with `max_shadows` 1, the pair as it is."""
    pair = together([shadow.pair for shadow in shadows if shadow.pair is not None])
    return knowledge.rates.dealt(body.cores, pair) if pair is not None and options.max_shadows > 1 else pair


def further_shadow(burst: Burst, body: Instance, pair: Pair) -> FurtherShadow | None:
    """The Shadow of best η that a Body could have beside those that it has, on its own node or else on another one.

    None where none would help.
    """
    return own_node_else_another(burst, body, lambda node: _further_shadow_on(node, burst, body, pair))


def _further_shadow_on(node: str, burst: Burst, body: Instance, pair: Pair) -> FurtherShadow | None:
    knowledge, options, elsewhere = burst.knowledge, burst.options, node != body.node
    parameter_bytes = knowledge.profile.layers.parameter_bytes(pair.blocks)
    memory_bytes = shadow_memory_bytes(knowledge, options, parameter_bytes, elsewhere=elsewhere)
    if memory_bytes > burst.capacity.memory_bytes(node):
        return None
    fitting = [cores for cores in knowledge.rates.cores if cores <= burst.capacity.shadow_cores(node)]
    before_rps = knowledge.rates.rate_rps(body.cores, pair)
    candidates: list[FurtherShadow] = []
    for cores in fitting if options.fewer_shadow_cores else fitting[-1:]:
        new = Pair(cores, pair.blocks, (), node if elsewhere else None)
        together_ = knowledge.rates.dealt(body.cores, replace(pair, others=(*pair.others, new)))
        number, rate_with_rps = len(pair.each), knowledge.rates.rate_rps(body.cores, together_)
        timely = [
            efficiency
            for batch, seconds, efficiency in knowledge.pairings.judged(body.cores, together_, number)
            if filling_s(batch, burst.rate_rps) + seconds <= knowledge.rates.slo_s
        ]
        if timely and rate_with_rps > before_rps * (1 + GAIN):
            gain_rps = rate_with_rps - before_rps
            candidates.append(
                FurtherShadow(together_.each[number], number + 1, max(timely), rate_with_rps, gain_rps, memory_bytes)
            )
    return max(candidates, key=lambda choice: choice.efficiency, default=None)


def changes(knowledge: Knowledge, bodies: Iterable[Instance], shadows: Iterable[Instance]) -> tuple[ChangeShadow, ...]:
    """New splits for Shadows that serve, where batches get quicker after a Shadow has joined or ended."""
    serving = shadows_of(shadow for shadow in shadows if shadow.state is InstanceState.READY)
    changed: list[ChangeShadow] = []
    for body in bodies:
        own_shadows = serving.get(body.id, [])
        present = together([shadow.pair for shadow in own_shadows if shadow.pair is not None])
        if present is None:
            continue
        # The shares were optimal when the last Shadow joined or left; another number of Shadows has other optimal shares.
        best = knowledge.rates.dealt(body.cores, present)
        present_latency, best_s = knowledge.rates.pair(body.cores, present), knowledge.rates.pair(body.cores, best)
        if present_latency is None or best_s is None:
            continue
        # A threshold: otherwise every small correction of the profile would change the shares again.
        if any(
            present_s > least * (1 + WORTH) for present_s, least in zip(present_latency.latency_s, best_s.latency_s, strict=True)
        ):
            changed_pairs = zip(own_shadows, present.each, best.each, strict=True)
            changed += [ChangeShadow(shadow.id, after) for shadow, before, after in changed_pairs if after != before]
    return tuple(changed)


ARRIVES_WITHIN_S = 30.0
"""A kubelet gives a pod other cores within seconds, if its node has them. What has not come by then is taken back."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Cores of a Body before it was enlarged, and the time of the request for more; None once it returns to those."""

    before: int
    asked_at_s: float | None


FormerCores = Mapping[str, int]
"""Cores of each Body before it was enlarged, by id."""


def best_growth(
    knowledge: Knowledge, options: Options, body: Instance, rate_rps: float, capacity: FreeCapacity
) -> Configuration | None:
    """The larger size of a Body with the best η that meets the objective at this rate and sustains more; None if none does.

    Like a Shadow it takes min(free, C_max) cores, or as many of them as are best where `fewer_shadow_cores` says so; but none of
    those that its node holds for Shadows.
    """
    # Without the node's reserve, which is for Shadows.
    most = body.cores + capacity.cores(body.node)
    larger = [cores for cores in knowledge.rates.cores if body.cores < cores <= most]
    sized = [best_batch(knowledge, cores, rate_rps) for cores in (larger if options.fewer_shadow_cores else larger[-1:])]
    enough_rps = knowledge.rates.rate_rps(body.cores) * (1 + GAIN)
    helpful = [each for each in sized if each is not None and each.rate_rps > enough_rps]
    return max(helpful, key=lambda each: (each.efficiency, -each.cores), default=None)


def pair_efficiency(knowledge: Knowledge, body: Instance, chosen: Pairing) -> float:
    """η of a Body together with the Shadow that it would have, in the batch that the Shadow was chosen for."""
    cores = body.cores + chosen.pair.shadow_cores
    return knowledge.efficiency.of_rate(chosen.batch / chosen.latency_s, cores, knowledge.parameter_bytes, chosen.parameter_bytes)


def whole_efficiency(knowledge: Knowledge, body: Instance, pair: Pair | None) -> float:
    """η of a Body, with its Shadow if it has one, at the rate that it sustains."""
    rate_rps = knowledge.rates.rate_rps(body.cores, pair)
    if pair is None:
        return knowledge.efficiency.of_rate(rate_rps, body.cores, knowledge.parameter_bytes)
    held_bytes = [knowledge.profile.layers.parameter_bytes(share.blocks) for share in pair.each]
    return knowledge.efficiency.of_rate(rate_rps, body.cores + sum(pair.cores), knowledge.parameter_bytes, *held_bytes)


def growths_in(memory: Memory, observation: Observation) -> dict[str, Growth]:
    """The live Bodies that were enlarged or have a pending request, from the last decision's state.

    A Body that is back at its former size is left out.
    """
    entries = memory.get("grown")
    read = {name: _growth(entry) for name, entry in entries.items()} if isinstance(entries, Mapping) else {}
    growing = [(body, growth) for body in observation.live if (growth := read.get(body.id)) is not None]
    return {body.id: growth for body, growth in growing if growth.asked_at_s is not None or body.cores > growth.before}


def _growth(entry: StateValue) -> Growth | None:
    if not isinstance(entry, Mapping):
        return None
    before = entry.get("before")
    return Growth(before, timestamp_in(entry, "asked_at_s")) if isinstance(before, int) else None


def cores_before(growths: Mapping[str, Growth]) -> FormerCores:
    """The cores of each Body before it was enlarged."""
    return {name: growth.before for name, growth in growths.items()}


def with_pending_cores(bodies: Iterable[Instance]) -> tuple[Instance, ...]:
    """The Bodies with pending cores counted as theirs, as Shadows that still load are counted.

    A kubelet takes about a second, and a burst is looked at twice in that time: the second look would ask other Bodies as well.
    """
    return tuple(
        body if body.coming_cores is None else replace(body, cores=body.given_cores, coming_cores=None) for body in bodies
    )


def refused_growths(growths: Mapping[str, Growth], observation: Observation) -> set[str]:
    """The Bodies whose request for more cores was refused: neither present nor pending."""
    cores_of = {body.id: body.given_cores for body in observation.live}
    return {name for name, growth in growths.items() if growth.asked_at_s is not None and cores_of[name] <= growth.before}


def returning(growths: Mapping[str, Growth], observation: Observation) -> set[str]:
    """The Bodies with a pending resize back to their former size."""
    coming = {body.id: body.coming_cores for body in observation.live}
    return {name for name, growth in growths.items() if (cores := coming[name]) is not None and cores <= growth.before}


def overdue(growths: Mapping[str, Growth], observation: Observation) -> tuple[Resize, ...]:
    """Resizes that withdraw overdue requests for cores: such cores might arrive when the burst is over."""
    cores = {body.id: body.cores for body in observation.live}
    return tuple(
        Resize(name, growth.before)
        for name, growth in sorted(growths.items())
        if growth.asked_at_s is not None
        and cores[name] <= growth.before
        and not within_period(growth.asked_at_s, ARRIVES_WITHIN_S, observation.now_s)
    )


def grown_after(
    growths: Mapping[str, Growth], resized: Iterable[Resize], observation: Observation, ending: set[str]
) -> dict[str, StateValue]:
    """The `growths` to keep in the policy state once these resizes have been carried out, or are under way."""
    cores = {body.id: body.cores for body in observation.live}
    kept_growths, again = dict(growths), refused_growths(growths, observation)
    for action in resized:
        growth = kept_growths.get(action.id, Growth(cores[action.id], None))
        # A refused request is over: the pending time starts with the present request.
        first_s = observation.now_s if growth.asked_at_s is None or action.id in again else growth.asked_at_s
        kept_growths[action.id] = replace(growth, asked_at_s=first_s if action.cores > growth.before else None)
    return {
        name: {"before": growth.before, "asked_at_s": growth.asked_at_s}
        for name, growth in sorted(kept_growths.items())
        if name not in ending
    }


def with_former_cores(observation: Observation, grown: FormerCores) -> Observation:
    """The observation with every Body at its former size."""
    if not grown:
        return observation
    instances = tuple(replace(instance, cores=grown.get(instance.id, instance.cores)) for instance in observation.instances)
    return replace(observation, instances=instances)


def resizes_back(grown: FormerCores) -> tuple[Resize, ...]:
    """Resizes that return every Body to its former size."""
    return tuple(Resize(name, before) for name, before in sorted(grown.items()))


@dataclass(frozen=True, slots=True)
class LayerLevel:
    """The actions of layer-level scaling in one decision, and their reason; no reason if there is nothing to report."""

    created: tuple[CreateShadow, ...] = ()
    released: tuple[DestroyShadow, ...] = ()
    resized: tuple[Resize, ...] = ()
    changed: tuple[ChangeShadow, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """A check for a burst. `bodies` serve now and stay; `grown` has the former cores of those that were enlarged.

    `refused` are Bodies whose recent request for cores was refused.
    """

    knowledge: Knowledge
    options: Options
    observation: Observation
    bodies: tuple[Instance, ...]
    grown: Mapping[str, int] = field(default_factory=dict)
    refused: Collection[str] = ()

    def scale(self, capacity: FreeCapacity) -> LayerLevel:
        """Create Shadows for a burst, or release superfluous ones. `capacity` is what this call reduces."""
        return self.scale_to(burst_demand(self.observation, self.options), capacity) if self.bodies else LayerLevel()

    def scale_to(self, demand: Demand, capacity: FreeCapacity) -> LayerLevel:
        """Create Shadows for this demand, or release superfluous ones. `capacity` is what this call reduces."""
        if not self.bodies:
            return LayerLevel()
        helped = shadows_of(self.observation.shadows)
        rate_max_rps = math.fsum(self._rate_rps(body, helped.get(body.id, ())) for body in self.bodies)
        if self._over(demand.now_rps, rate_max_rps):
            level = self._scale_up(demand, rate_max_rps, capacity)
        else:
            level = self._release(demand.peak_rps, rate_max_rps)
        return level if self.options.max_shadows == 1 else self._share_again(level)

    def _share_again(self, level: LayerLevel) -> LayerLevel:
        """Change the shares of the Shadows that serve and stay."""
        ending = {action.id for action in level.released}
        changed = changes(self.knowledge, self.bodies, [shadow for shadow in self.observation.shadows if shadow.id not in ending])
        reasons = [level.reason] * bool(level.reason) + [f"{many(len(changed), 'Shadow')} with other shares"] * bool(changed)
        return replace(level, changed=changed, reason="; ".join(reasons))

    def _rate_rps(self, body: Instance, shadows: Sequence[Instance]) -> float:
        return self.knowledge.rates.rate_rps(body.cores, sharing(self.knowledge, self.options, body, shadows))

    def _over(self, rate_rps: float, rate_max_rps: float) -> bool:
        """R_burst > γ·R_max."""
        return rate_rps > self.options.gamma * rate_max_rps * (1 + ROUNDING)

    def _scale_up(self, demand: Demand, before_rps: float, capacity: FreeCapacity) -> LayerLevel:
        rate_rps = demand.now_rps
        # Bodies without a Shadow first; only if none of them gets one do others get a further Shadow (`_give_more`).
        alone = self._alone()
        created: list[CreateShadow] = []
        resized: list[Resize] = []
        reasons: list[str] = []
        rate_max_rps = before_rps
        for body in alone:
            if not self._over(rate_rps, rate_max_rps):
                break
            chosen = self._best_help(body, rate_rps, capacity)
            if chosen is None:
                continue
            if isinstance(chosen, Pairing):
                self._take(body, chosen, capacity)
                created.append(CreateShadow(body.id, chosen.pair))
                reasons.append(_shadow_reason(self.knowledge, body, chosen))
            else:
                capacity.take(body.node, chosen.cores - body.cores)
                resized.append(Resize(body.id, chosen.cores))
                reasons.append(f"{body.id} grows from {many(body.cores, 'core')} to {chosen}")
            rate_max_rps += chosen.rate_rps - self.knowledge.rates.rate_rps(body.cores)
        if not reasons:
            rate_max_rps = self._give_more(rate_rps, rate_max_rps, capacity, (created, reasons))
        need = f"{demand.reason}, R_max {before_rps:.2f}: above γ = {self.options.gamma:g}"
        if not reasons:
            help_ = "a Shadow" if self.options.burst_cores == "shadow" else "anything"
            why = f"no room for {help_} that would help" if alone else "every Body has its Shadow"
            return LayerLevel(reason=f"{need}, but {why}")
        reason = f"{need}; {'; '.join(reasons)}; R_max {rate_max_rps:.2f} then"
        return LayerLevel(tuple(created), resized=tuple(resized), reason=reason)

    def _best_help(self, body: Instance, rate_rps: float, capacity: FreeCapacity) -> Pairing | Configuration | None:
        """Choose a Shadow or more cores, by `burst_cores`. An enlarged Body may get further cores, and no Shadow.

        A Body that was refused cores gets a Shadow if one helps: the burst does not wait for a second refusal.
        """
        by = self.options.burst_cores
        shadow = None if by == "resize" or body.id in self.grown else self.best_pairing(body, rate_rps, capacity)
        larger = None if by == "shadow" else best_growth(self.knowledge, self.options, body, rate_rps, capacity)
        if shadow is None or larger is None or body.id in self.refused:
            return shadow or larger
        return larger if larger.efficiency >= pair_efficiency(self.knowledge, body, shadow) else shadow

    def _give_more(
        self, rate_rps: float, rate_max_rps: float, capacity: FreeCapacity, chosen_shadows: tuple[list[CreateShadow], list[str]]
    ) -> float:
        """Add at most one further Shadow to each Body that has some, fewest Shadows first. Returns the new R_max."""
        helped, most = shadows_of(self.observation.shadows), self.options.max_shadows
        able = [body for body in self.bodies if body.id not in self.grown and body.id in helped and self._has(body) < most]
        created, reasons = chosen_shadows
        for body in sorted(able, key=lambda body: (len(helped[body.id]), -body.cores, body.id)):
            if not self._over(rate_rps, rate_max_rps):
                break
            pair = sharing(self.knowledge, self.options, body, helped[body.id])
            further = (
                None if pair is None else further_shadow(Burst(self.knowledge, self.options, rate_rps, capacity), body, pair)
            )
            if further is not None:
                capacity.take_for_shadow(further.pair.node or body.node, further.pair.shadow_cores, further.memory_bytes)
                rate_max_rps += further.gain_rps
                created.append(CreateShadow(body.id, further.pair))
                what = f"Shadow {further.count} of {many(further.pair.shadow_cores, 'core')}{_place(further.pair)}"
                reasons.append(f"{body.id} gets {what}: {further.rate_rps:.2f} rps, η {further.efficiency:.3g}")
        return rate_max_rps

    def _has(self, body: Instance) -> int:
        """The number of a Body's Shadows, including those that drain and one that is being promoted, which it may keep."""
        # In any state: a Shadow that drains still occupies its place.
        their_cores = {
            instance.id
            for instance in self.observation.instances
            if instance.kind is InstanceKind.SHADOW and instance.partner == body.id
        }
        return len(their_cores | body.shadows.keys())

    def _alone(self) -> list[Instance]:
        """Line 1: the Bodies that have no Shadow, not even one that starts or drains; the largest first."""
        paired = {shadow.partner for shadow in self.observation.instances if shadow.kind is InstanceKind.SHADOW}
        alone = [body for body in self.bodies if body.id not in paired and body.partner is None]
        return sorted(alone, key=lambda body: (-body.cores, body.id))

    def best_pairing(self, body: Instance, rate_rps: float, capacity: FreeCapacity) -> Pairing | None:
        """Lines 6 to 23 for one Body."""
        return best_pairing(self.knowledge, self.options, body, rate_rps, capacity)

    def _take(self, body: Instance, chosen: Pairing, capacity: FreeCapacity) -> None:
        """Reserve the capacity of a Shadow."""
        node = chosen.pair.node
        memory_bytes = shadow_memory_bytes(self.knowledge, self.options, chosen.parameter_bytes, elsewhere=node is not None)
        capacity.take_for_shadow(body.node if node is None else node, chosen.pair.shadow_cores, memory_bytes)

    def _release(self, peak_rps: float, rate_max_rps: float) -> LayerLevel:
        released: list[DestroyShadow | Resize] = []
        for added in self._least_efficient_first():
            without_rps = rate_max_rps - added.gain_rps
            # In order of η: if the least efficient one is needed, the more efficient ones are kept too.
            if self._over(peak_rps, without_rps):
                break
            rate_max_rps = without_rps
            released.append(added.release)
        if not released:
            return LayerLevel()
        calm_s = self.options.release_ticks * self.options.tick_s
        shadows = tuple(action for action in released if isinstance(action, DestroyShadow))
        resized = tuple(action for action in released if isinstance(action, Resize))
        without = [many(len(shadows), "Shadow")] * bool(shadows) + [many(len(resized), "larger Body")] * bool(resized)
        what = f"R_max {rate_max_rps:.2f} without {' and '.join(without)}"
        reason = f"at most {peak_rps:.2f} rps for {calm_s:g} s, {what}: within γ = {self.options.gamma:g}"
        return LayerLevel(released=shadows, resized=resized, reason=reason)

    def _least_efficient_first(self) -> list[_AddedCapacity]:
        """Capacity that was added for a burst, lowest η first; of an enlarged Body and of a pair, η is that of the whole."""
        rates, serving = self.knowledge.rates, {body.id: body for body in self.bodies}
        added: list[_AddedCapacity] = []
        for name, shadows in shadows_of(self.observation.shadows).items():
            if name in serving:
                added += self._added_shadows(serving[name], shadows)
        for name, before in self.grown.items():
            body = serving.get(name)
            if body is not None:
                gain_rps = rates.rate_rps(body.cores) - rates.rate_rps(before)
                added.append(_AddedCapacity(whole_efficiency(self.knowledge, body, None), name, gain_rps, Resize(name, before)))
        return sorted(added, key=lambda entry: (entry.efficiency, entry.id))

    def _added_shadows(self, body: Instance, shadows: Sequence[Instance]) -> list[_AddedCapacity]:
        """A Body's Shadows by η; each counts with what the Body loses with it once the weaker ones have gone."""
        pair = sharing(self.knowledge, self.options, body, shadows)
        assert pair is not None, "shadows_of has those whose work is known"
        judged = [(self._efficiency(body, pair, number), shadow.id, shadow) for number, shadow in enumerate(shadows)]
        unvisited, added = list(shadows), list[_AddedCapacity]()
        for efficiency, name, shadow in sorted(judged, key=lambda entry: entry[:2]):
            before_rps = self._rate_rps(body, unvisited)
            unvisited.remove(shadow)
            added.append(_AddedCapacity(efficiency, name, before_rps - self._rate_rps(body, unvisited), DestroyShadow(name)))
        return added

    def _efficiency(self, body: Instance, pair: Pair, number: int) -> float:
        if self.options.burst_cores == "shadow":
            return self.knowledge.pairings.efficiency(body.cores, pair, number)
        return whole_efficiency(self.knowledge, body, pair)


@dataclass(frozen=True, slots=True)
class _AddedCapacity:
    """Capacity that was added for a burst: its efficiency, its gain in requests/s, and the action that releases it."""

    efficiency: float
    id: str
    gain_rps: float
    release: DestroyShadow | Resize


def _shadow_reason(knowledge: Knowledge, body: Instance, chosen: Pairing) -> str:
    samples = chosen.pair.split[chosen.batch - 1]
    alone = knowledge.rates.body(body.cores)
    alone_s = alone.latency_s[chosen.batch - 1] if alone is not None else 0.0
    share = chosen.parameter_bytes / knowledge.parameter_bytes if knowledge.parameter_bytes else 0.0
    what = f"a Shadow of {many(chosen.pair.shadow_cores, 'core')}{_place(chosen.pair)}"
    return (
        f"{body.id} ({many(body.cores, 'core')}) gets {what} with "
        f"{many(len(chosen.pair.blocks), 'block')}, {share:.0%} of the weights: b = {chosen.batch} as "
        f"{chosen.batch - samples} + {samples} in {chosen.latency_s * 1e3:.0f} ms instead of {alone_s * 1e3:.0f}, "
        f"η {chosen.efficiency:.3g}"
    )


def _place(pair: Pair) -> str:
    """The node of the pair's Shadow as " on NODE"; empty if that is its Body's node."""
    return "" if pair.node is None else f" on {pair.node}"
