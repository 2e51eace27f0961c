"""Layer-level scaling, Algorithm 2: Shadows for a burst. At every tick, for the rate R_burst (`demand`).

    while R_burst > γ·R_max    the next Body that serves alone, the largest first, gets the Shadow of best η on its node
    R_burst ≤ γ·R_max without it, for N ticks    the Shadow of least η is released

Where `burst_cores` allows it, the Body may grow instead (`growth`), and is made as large as it was by the same rule.
R_max counts the Bodies that serve now, with the Shadows that they have or are about to have: a Body that still loads carries
nothing of this burst. docs/decisions/0012-lls.md has each place where the printed algorithm had to be settled, with its worked
example.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gnomon_autoscaler.counting import ROUNDING
from gnomon_autoscaler.policies.asyfunc.demand import burst_rps, told
from gnomon_autoscaler.policies.asyfunc.growth import best_growth, pair_efficiency, whole_efficiency
from gnomon_autoscaler.policies.asyfunc.knowledge import Knowledge
from gnomon_autoscaler.policies.asyfunc.model_level import Configuration
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.pairings import Pairing
from gnomon_autoscaler.policies.asyfunc.several import another, changes, shadows_of, sharing
from gnomon_autoscaler.policies.asyfunc.shadow_nodes import Burst, best_pairing, shadow_memory_bytes
from gnomon_autoscaler.room import Room
from gnomon_core.fleet import Instance, InstanceKind
from gnomon_core.pairs import Pair
from gnomon_core.scaling import ChangeShadow, CreateShadow, DestroyShadow, Observation, Resize
from gnomon_core.units import many


@dataclass(frozen=True, slots=True)
class LayerLevel:
    """What layer-level scaling does now, and why; no reason where there is nothing to say."""

    created: tuple[CreateShadow, ...] = ()
    released: tuple[DestroyShadow, ...] = ()
    resized: tuple[Resize, ...] = ()
    changed: tuple[ChangeShadow, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """One look for a burst. `bodies` are those that serve and go on to; `grown` has what some of them had before they grew.

    `refused` are those that were to grow lately and could not.
    """

    known: Knowledge
    options: Options
    seen: Observation
    bodies: tuple[Instance, ...]
    grown: Mapping[str, int] = field(default_factory=dict)
    refused: Collection[str] = ()

    def scale(self, room: Room) -> LayerLevel:
        """Shadows for a burst, or the release of those that are superfluous. `room` is what is free, and less afterwards."""
        if not self.bodies:
            return LayerLevel()
        helped = shadows_of(self.seen.shadows)
        rate_max_rps = math.fsum(self._rate_rps(body, helped.get(body.id, ())) for body in self.bodies)
        rate_rps = burst_rps(self.seen, self.options)
        if self._over(rate_rps, rate_max_rps):
            level = self._scale_up(rate_rps, rate_max_rps, room)
        else:
            level = self._release(rate_max_rps)
        return level if self.options.max_shadows == 1 else self._share_anew(level)

    def _share_anew(self, level: LayerLevel) -> LayerLevel:
        """Other shares for the Shadows that serve and stay."""
        ending = {action.id for action in level.released}
        changed = changes(self.known, self.bodies, [one for one in self.seen.shadows if one.id not in ending])
        said = [level.reason] * bool(level.reason) + [f"{many(len(changed), 'Shadow')} with other shares"] * bool(changed)
        return replace(level, changed=changed, reason="; ".join(said))

    def _rate_rps(self, body: Instance, shadows: Sequence[Instance]) -> float:
        return self.known.rates.rate_rps(body.cores, sharing(self.known, self.options, body, shadows))

    def _over(self, rate_rps: float, rate_max_rps: float) -> bool:
        """R_burst > γ·R_max."""
        return rate_rps > self.options.gamma * rate_max_rps * (1 + ROUNDING)

    def _scale_up(self, rate_rps: float, before_rps: float, room: Room) -> LayerLevel:
        alone = self._alone()
        created: list[CreateShadow] = []
        resized: list[Resize] = []
        said: list[str] = []
        rate_max_rps = before_rps
        for body in alone:
            if not self._over(rate_rps, rate_max_rps):
                break
            chosen = self._best_help(body, rate_rps, room)
            if chosen is None:
                continue
            if isinstance(chosen, Pairing):
                self._take(body, chosen, room)
                created.append(CreateShadow(body.id, chosen.pair))
                said.append(_told(self.known, body, chosen))
            else:
                room.take(body.node, chosen.cores - body.cores)
                resized.append(Resize(body.id, chosen.cores))
                said.append(f"{body.id} grows from {many(body.cores, 'core')} to {chosen}")
            rate_max_rps += chosen.rate_rps - self.known.rates.rate_rps(body.cores)
        if not said:
            rate_max_rps = self._give_more(rate_rps, rate_max_rps, room, (created, said))
        need = f"{told(self.seen, self.options)}, R_max {before_rps:.2f}: above γ = {self.options.gamma:g}"
        if not said:
            help_ = "a Shadow" if self.options.burst_cores == "shadow" else "anything"
            why = f"no room for {help_} that would help" if alone else "every Body has its Shadow"
            return LayerLevel(reason=f"{need}, but {why}")
        reason = f"{need}; {'; '.join(said)}; R_max {rate_max_rps:.2f} then"
        return LayerLevel(tuple(created), resized=tuple(resized), reason=reason)

    def _best_help(self, body: Instance, rate_rps: float, room: Room) -> Pairing | Configuration | None:
        """A Shadow or more cores, as `burst_cores` says. One that has grown may grow more, and gets no Shadow.

        One that was refused cores gets the Shadow, if there is one that helps: the burst does not wait for a second refusal.
        """
        by = self.options.burst_cores
        shadow = None if by == "resize" or body.id in self.grown else self.best_pairing(body, rate_rps, room)
        larger = None if by == "shadow" else best_growth(self.known, self.options, body, rate_rps, room)
        if shadow is None or larger is None or body.id in self.refused:
            return shadow or larger
        return larger if larger.efficiency >= pair_efficiency(self.known, body, shadow) else shadow

    def _give_more(self, rate_rps: float, rate_max_rps: float, room: Room, given: tuple[list[CreateShadow], list[str]]) -> float:
        """Where no Body can get its first Shadow: further ones, at most one each, for those with the fewest first. R_max then."""
        helped, most = shadows_of(self.seen.shadows), self.options.max_shadows
        able = [body for body in self.bodies if body.id not in self.grown and body.id in helped and self._has(body) < most]
        created, said = given
        for body in sorted(able, key=lambda body: (len(helped[body.id]), -body.cores, body.id)):
            if not self._over(rate_rps, rate_max_rps):
                break
            pair = sharing(self.known, self.options, body, helped[body.id])
            more = None if pair is None else another(Burst(self.known, self.options, rate_rps, room), body, pair)
            if more is not None:
                room.take_for_shadow(more.pair.node or body.node, more.pair.shadow_cores, more.memory_bytes)
                rate_max_rps += more.gain_rps
                created.append(CreateShadow(body.id, more.pair))
                what = f"Shadow {more.count} of {many(more.pair.shadow_cores, 'core')}{_place(more.pair)}"
                said.append(f"{body.id} gets {what}: {more.rate_rps:.2f} rps, η {more.efficiency:.3g}")
        return rate_max_rps

    def _has(self, body: Instance) -> int:
        """How many Shadows it has: also those that drain, and one that is to become a Body, which it may keep."""
        theirs = {one.id for one in self.seen.instances if one.kind is InstanceKind.SHADOW and one.partner == body.id}
        return len(theirs | body.shadows.keys())

    def _alone(self) -> list[Instance]:
        """Line 1: the Bodies that have no Shadow, not even one that starts or drains; the largest first."""
        paired = {shadow.partner for shadow in self.seen.instances if shadow.kind is InstanceKind.SHADOW}
        alone = [body for body in self.bodies if body.id not in paired and body.partner is None]
        return sorted(alone, key=lambda body: (-body.cores, body.id))

    def best_pairing(self, body: Instance, rate_rps: float, room: Room) -> Pairing | None:
        """Lines 6 to 23 for one Body."""
        return best_pairing(self.known, self.options, body, rate_rps, room)

    def _take(self, body: Instance, chosen: Pairing, room: Room) -> None:
        """Give a Shadow its room."""
        node = chosen.pair.node
        memory_bytes = shadow_memory_bytes(self.known, self.options, chosen.parameter_bytes, elsewhere=node is not None)
        room.take_for_shadow(body.node if node is None else node, chosen.pair.shadow_cores, memory_bytes)

    def _release(self, rate_max_rps: float) -> LayerLevel:
        peak_rps = max(burst_rps(self.seen, self.options, ticks_ago) for ticks_ago in range(self.options.release_ticks))
        released: list[DestroyShadow | Resize] = []
        for taken in self._weakest_first():
            without_rps = rate_max_rps - taken.gain_rps
            if self._over(peak_rps, without_rps):
                break
            rate_max_rps = without_rps
            released.append(taken.release)
        if not released:
            return LayerLevel()
        calm_s = self.options.release_ticks * self.options.tick_s
        shadows = tuple(action for action in released if isinstance(action, DestroyShadow))
        resized = tuple(action for action in released if isinstance(action, Resize))
        without = [many(len(shadows), "Shadow")] * bool(shadows) + [many(len(resized), "larger Body")] * bool(resized)
        what = f"R_max {rate_max_rps:.2f} without {' and '.join(without)}"
        reason = f"at most {peak_rps:.2f} rps for {calm_s:g} s, {what}: within γ = {self.options.gamma:g}"
        return LayerLevel(released=shadows, resized=resized, reason=reason)

    def _weakest_first(self) -> list[_Taken]:
        """What Bodies have been given for a burst, by η; of larger Bodies and pairs by that of the whole."""
        rates, serving = self.known.rates, {body.id: body for body in self.bodies}
        found: list[_Taken] = []
        for name, shadows in shadows_of(self.seen.shadows).items():
            if name in serving:
                found += self._help_of(serving[name], shadows)
        for name, before in self.grown.items():
            body = serving.get(name)
            if body is not None:
                gain_rps = rates.rate_rps(body.cores) - rates.rate_rps(before)
                found.append(_Taken(whole_efficiency(self.known, body, None), name, gain_rps, Resize(name, before)))
        return sorted(found, key=lambda taken: (taken.efficiency, taken.id))

    def _help_of(self, body: Instance, shadows: Sequence[Instance]) -> list[_Taken]:
        """A Body's Shadows by η; each counts with what the Body loses with it once the weaker ones have gone."""
        pair = sharing(self.known, self.options, body, shadows)
        assert pair is not None, "shadows_of has those whose work is known"
        judged = [(self._efficiency(body, pair, number), shadow.id, shadow) for number, shadow in enumerate(shadows)]
        left, found = list(shadows), list[_Taken]()
        for efficiency, name, shadow in sorted(judged, key=lambda entry: entry[:2]):
            before_rps = self._rate_rps(body, left)
            left.remove(shadow)
            found.append(_Taken(efficiency, name, before_rps - self._rate_rps(body, left), DestroyShadow(name)))
        return found

    def _efficiency(self, body: Instance, pair: Pair, number: int) -> float:
        if self.options.burst_cores == "shadow":
            return self.known.pairings.efficiency(body.cores, pair, number)
        return whole_efficiency(self.known, body, pair)


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a burst has been given: how much it helps, and what ends it."""

    efficiency: float
    id: str
    gain_rps: float
    release: DestroyShadow | Resize


def _told(known: Knowledge, body: Instance, chosen: Pairing) -> str:
    there = chosen.pair.split[chosen.batch - 1]
    alone = known.rates.body(body.cores)
    alone_s = alone.latency_s[chosen.batch - 1] if alone is not None else 0.0
    share = chosen.parameter_bytes / known.parameter_bytes if known.parameter_bytes else 0.0
    what = f"a Shadow of {many(chosen.pair.shadow_cores, 'core')}{_place(chosen.pair)}"
    return (
        f"{body.id} ({many(body.cores, 'core')}) gets {what} with "
        f"{many(len(chosen.pair.blocks), 'block')}, {share:.0%} of the weights: b = {chosen.batch} as "
        f"{chosen.batch - there} + {there} in {chosen.latency_s * 1e3:.0f} ms instead of {alone_s * 1e3:.0f}, "
        f"η {chosen.efficiency:.3g}"
    )


def _place(pair: Pair) -> str:
    """Where its Shadow is, where that is not on its Body's node."""
    return "" if pair.node is None else f" on {pair.node}"
