"""Layer-level scaling, Algorithm 2: Shadows for a burst. At every tick, for the rate R_burst (`demand`).

    while R_burst > γ·R_max    the next Body that serves alone, the largest first, gets the Shadow of best η on its node
    R_burst ≤ γ·R_max without it, for N ticks    the Shadow of least η is released

R_max counts the Bodies that serve now, with the Shadows that they have or are about to have: a Body that still loads carries
nothing of this burst. docs/decisions/0012-lls.md has each place where the printed algorithm had to be settled, with its worked
example.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gnomon_autoscaler.counting import ROUNDING
from gnomon_autoscaler.policies.asyfunc.demand import burst_rps, told
from gnomon_autoscaler.policies.asyfunc.knowledge import Knowledge
from gnomon_autoscaler.policies.asyfunc.model_level import many
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.pairings import Pairing
from gnomon_autoscaler.policies.asyfunc.places import best_pairing, shadow_memory_bytes
from gnomon_autoscaler.room import Room
from gnomon_core.fleet import Instance, InstanceKind
from gnomon_core.scaling import CreateShadow, DestroyShadow, Observation


@dataclass(frozen=True, slots=True)
class LayerLevel:
    """What layer-level scaling does now, and why; no reason where there is nothing to say."""

    created: tuple[CreateShadow, ...] = ()
    released: tuple[DestroyShadow, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """One look for a burst. `bodies` are those that serve and go on to."""

    known: Knowledge
    options: Options
    seen: Observation
    bodies: tuple[Instance, ...]

    def scale(self, room: Room) -> LayerLevel:
        """Shadows for a burst, or the release of those that are superfluous. `room` is what is free, and less afterwards."""
        if not self.bodies:
            return LayerLevel()
        pairs = {shadow.partner: shadow.pair for shadow in self.seen.shadows}
        rate_max_rps = math.fsum(self.known.rates.rate_rps(body.cores, pairs.get(body.id)) for body in self.bodies)
        rate_rps = burst_rps(self.seen, self.options)
        if self._over(rate_rps, rate_max_rps):
            return self._scale_up(rate_rps, rate_max_rps, room)
        return self._release(rate_max_rps)

    def _over(self, rate_rps: float, rate_max_rps: float) -> bool:
        """R_burst > γ·R_max."""
        return rate_rps > self.options.gamma * rate_max_rps * (1 + ROUNDING)

    def _scale_up(self, rate_rps: float, before_rps: float, room: Room) -> LayerLevel:
        alone = self._alone()
        created: list[CreateShadow] = []
        said: list[str] = []
        rate_max_rps = before_rps
        for body in alone:
            if not self._over(rate_rps, rate_max_rps):
                break
            chosen = self.best_pairing(body, rate_rps, room)
            if chosen is None:
                continue
            self._take(body, chosen, room)
            rate_max_rps += chosen.rate_rps - self.known.rates.rate_rps(body.cores)
            created.append(CreateShadow(body.id, chosen.pair))
            said.append(_told(self.known, body, chosen))
        need = f"{told(self.seen, self.options)}, R_max {before_rps:.2f}: above γ = {self.options.gamma:g}"
        if not created:
            why = "no room for a Shadow that would help" if alone else "every Body has its Shadow"
            return LayerLevel(reason=f"{need}, but {why}")
        return LayerLevel(tuple(created), reason=f"{need}; {'; '.join(said)}; R_max {rate_max_rps:.2f} then")

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
        memory_bytes = shadow_memory_bytes(self.known, self.options, chosen, elsewhere=node is not None)
        room.take(body.node if node is None else node, chosen.pair.shadow_cores, memory_bytes)

    def _release(self, rate_max_rps: float) -> LayerLevel:
        peak_rps = max(burst_rps(self.seen, self.options, ticks_ago) for ticks_ago in range(self.options.release_ticks))
        released: list[DestroyShadow] = []
        for shadow, body in self._weakest_first():
            alone_rps = self.known.rates.rate_rps(body.cores)
            without_rps = rate_max_rps - self.known.rates.rate_rps(body.cores, shadow.pair) + alone_rps
            if self._over(peak_rps, without_rps):
                break
            rate_max_rps = without_rps
            released.append(DestroyShadow(shadow.id))
        if not released:
            return LayerLevel()
        calm_s = self.options.release_ticks * self.options.tick_s
        what = f"R_max {rate_max_rps:.2f} without {many(len(released), 'Shadow')}"
        reason = f"at most {peak_rps:.2f} rps for {calm_s:g} s, {what}: within γ = {self.options.gamma:g}"
        return LayerLevel(released=tuple(released), reason=reason)

    def _weakest_first(self) -> list[tuple[Instance, Instance]]:
        """The Shadows with their Bodies, by η."""
        serving = {body.id: body for body in self.bodies}
        found = [
            (0.0 if shadow.pair is None else self.known.pairings.efficiency(body.cores, shadow.pair), shadow.id, shadow, body)
            for shadow in self.seen.shadows
            if shadow.partner is not None and (body := serving.get(shadow.partner)) is not None
        ]
        return [(shadow, body) for _, _, shadow, body in sorted(found, key=lambda entry: entry[:2])]


def _told(known: Knowledge, body: Instance, chosen: Pairing) -> str:
    there = chosen.pair.split[chosen.batch - 1]
    alone = known.rates.body(body.cores)
    alone_s = alone.latency_s[chosen.batch - 1] if alone is not None else 0.0
    place = "" if chosen.pair.node is None else f" on {chosen.pair.node}"
    share = chosen.parameter_bytes / known.parameter_bytes if known.parameter_bytes else 0.0
    return (
        f"{body.id} ({many(body.cores, 'core')}) gets a Shadow of {many(chosen.pair.shadow_cores, 'core')}{place} with "
        f"{many(len(chosen.pair.blocks), 'block')}, {share:.0%} of the weights: b = {chosen.batch} as "
        f"{chosen.batch - there} + {there} in {chosen.latency_s * 1e3:.0f} ms instead of {alone_s * 1e3:.0f}, "
        f"η {chosen.efficiency:.3g}"
    )
