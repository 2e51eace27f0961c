"""The number of Bodies, as a count policy: so that bounds, operators and idle times hold for `asyfunc` as for every policy.

Model-level scaling decides once a period; between two periods the number stays, and a Body that ends by itself is replaced. Where
somebody else decides how many there are, bounds or an operator, the number that the load deserves is what it was as long as R
would have as many Bodies from nothing. Without a profile nothing is known of cores and batches; then the number is that of the
mean rate, as `lv` counts it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gnomon_autoscaler.counting import ROUNDING, Memory, Wish, count_in, goes_on, moment
from gnomon_autoscaler.policies.asyfunc.knowledge import Knowledge, Known
from gnomon_autoscaler.policies.asyfunc.model_level import configurations, from_nothing, scale_in, scale_out
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.promotion import promotable
from gnomon_autoscaler.policies.asyfunc.several import shadows_of
from gnomon_autoscaler.policies.rates import Rate
from gnomon_autoscaler.room import Room
from gnomon_core.fleet import Instance
from gnomon_core.pairs import together
from gnomon_core.scaling import Observation
from gnomon_core.units import many


@dataclass(frozen=True, slots=True)
class Bodies:
    """How many Bodies model-level scaling wants."""

    name: str
    options: Options
    known: Known
    version: int = 1

    @property
    def period_s(self) -> float:
        return self.options.tick_s

    @property
    def default_scheduler(self) -> str:
        return "adaptive" if self.options.adaptive else "fixed"

    def wish(self, seen: Observation, memory: Memory) -> Wish:
        decided_at_s, count = moment(memory, "decided_at_s"), count_in(memory, "count")
        if count is not None and goes_on(decided_at_s, self.options.period_s, seen.now_s):
            return Wish(count, f"{count} for this period", memory)
        known = self.known.of(seen)
        if known is None:
            wish = Rate(self.name, self.options.period_s).wish(seen, {})
            said = f"{missing(seen)}; by the mean rate: {wish.reason}"
            return Wish(max(1, wish.count), said, {"decided_at_s": seen.now_s, "count": max(1, wish.count)})
        return self._decide(seen, known, memory)

    def _decide(self, seen: Observation, known: Knowledge, memory: Memory) -> Wish:
        rate_rps = mean_rps(seen, self.options)
        ideal = from_nothing(known, rate_rps, self.options.alpha)
        count = count_in(memory, "count")
        if count is not None and count != len(seen.live) and ideal == count_in(memory, "ideal"):
            said = f"{rate_rps:.2f} rps in {self.options.period_s:g} s still deserve {count}"
        else:
            count, said = self._counted(seen, known, rate_rps)
        return Wish(count, said, {"decided_at_s": seen.now_s, "count": count, "ideal": ideal})

    def _counted(self, seen: Observation, known: Knowledge, rate_rps: float) -> tuple[int, str]:
        options, live = self.options, len(seen.live)
        rates_rps = sustained_rps(known, seen, seen.live, shadows_count=options.shadows_count)
        rate_max_rps = math.fsum(rates_rps.values())
        slow = " (no number of cores meets the SLO)" if known.rates.out_of_reach else ""
        said = f"{rate_rps:.2f} rps in {options.period_s:g} s, R_max {rate_max_rps:.2f}{slow}"
        if rate_rps > options.alpha * rate_max_rps * (1 + ROUNDING):
            memory_bytes = body_memory_bytes(seen)
            promoted = 0
            for shadow in promotable(known, options, seen, rate_rps, memory_bytes):
                if rate_rps > options.alpha * rate_max_rps * (1 + ROUNDING):
                    rate_max_rps += known.rates.rate_rps(shadow.cores)
                    promoted += 1
            made = scale_out(
                known,
                options,
                Room(seen.nodes),
                rate_rps=rate_rps,
                rate_max_rps=rate_max_rps,
                memory_bytes=memory_bytes,
            )
            best = configurations(known, rate_rps)[0]
            full = "" if made or promoted else ", but no node has room"
            shadows = f"{many(promoted, 'Shadow')} as Body, " if promoted else ""
            more = f"{said}: above α = {options.alpha:g}, {shadows}{len(made)} more of {best} at κ = {known.kappa:.3g}{full}"
            return max(1, live + promoted + len(made)), more
        if rate_rps < options.beta * rate_max_rps:
            ended = scale_in(known, options, seen.live, rates_rps, rate_rps)
            needed = "" if ended else ", but each is needed"
            return max(1, live - len(ended)), f"{said}: below β = {options.beta:g}, {len(ended)} fewer{needed}"
        return max(1, live), f"{said}: between β = {options.beta:g} and α = {options.alpha:g}, {max(1, live)}"


def missing(seen: Observation) -> str:
    """Why there is no profile to decide by, and what to do."""
    model = seen.settings.model or "MODEL"
    if seen.profile is None:
        return f"no profile of the model: measure one with `gnomon models profile {model}`"
    return f"the profile knows no number of cores up to {seen.settings.max_cores}: measure with `gnomon models profile {model}`"


def mean_rps(seen: Observation, options: Options) -> float:
    """R: the mean rate of the last period."""
    return seen.history.rate_rps(seen.history.arrivals, options.period_s)


def sustained_rps(known: Knowledge, seen: Observation, bodies: Sequence[Instance], *, shadows_count: bool) -> dict[str, float]:
    """R_max of each of these Bodies by its id; with the Shadow that it has or is about to have, where Shadows count."""
    helped = shadows_of(seen.shadows) if shadows_count else {}
    pairs = {name: together([one.pair for one in shadows if one.pair is not None]) for name, shadows in helped.items()}
    return {body.id: known.rates.rate_rps(body.cores, pairs.get(body.id)) for body in bodies}


def body_memory_bytes(seen: Observation) -> int:
    """What a Body of this function takes on its node; 0 until there is one, then only cores are looked at."""
    return max((body.memory_bytes for body in seen.live), default=0)
