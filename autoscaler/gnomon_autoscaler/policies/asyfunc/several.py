"""More than one Shadow per Body, which the paper does not have: `gnomon/max-shadows`, 1 by default.

    R_burst > γ·R_max, and no Body can get its first Shadow    the Body with the fewest, the largest first, gets another
    a Shadow has begun to serve, or has ended                  those that serve share each batch anew

All Shadows of a Body hold the same blocks, those that were best for its first. Another one is made only where it raises the
Body's R_max, and where its batch fills and ends in time: on the Body's own node, or else on another, with the way priced in
(`shadow_nodes`). While it loads, the others keep their shares: a Body is never slower for a Shadow that is about to come.
docs/decisions/0014-several-shadows.md has a worked example.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gnomon_autoscaler.policies.asyfunc.knowledge import Knowledge
from gnomon_autoscaler.policies.asyfunc.model_level import filling_s
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.pairings import GAIN
from gnomon_autoscaler.policies.asyfunc.shadow_nodes import Burst, at_home_or_elsewhere, shadow_memory_bytes
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.pairs import Pair, together
from gnomon_core.scaling import ChangeShadow

WORTH = 0.05
"""By so much another sharing must make a batch quicker: a profile that is corrected as it serves moves a little all the time."""


@dataclass(frozen=True, slots=True)
class Another:
    """A further Shadow of a Body: what it does, how many there are then, and what they all sustain."""

    pair: Pair
    count: int
    efficiency: float
    rate_rps: float
    gain_rps: float
    memory_bytes: int


def shadows_of(shadows: Iterable[Instance]) -> dict[str, list[Instance]]:
    """Shadows whose work is known, by Body."""
    found: dict[str, list[Instance]] = {}
    for shadow in shadows:
        if shadow.partner is not None and shadow.pair is not None:
            found.setdefault(shadow.partner, []).append(shadow)
    return found


def sharing(known: Knowledge, options: Options, body: Instance, shadows: Sequence[Instance]) -> Pair | None:
    """What a Body does with these Shadows once they share its batches. Where it may have one only, that does as it was told."""
    pair = together([shadow.pair for shadow in shadows if shadow.pair is not None])
    return known.rates.dealt(body.cores, pair) if pair is not None and options.max_shadows > 1 else pair


def another(burst: Burst, body: Instance, pair: Pair) -> Another | None:
    """The Shadow of best η that a Body could have beside those that it has, on its own node or else on another one.

    None where none would help.
    """
    return at_home_or_elsewhere(burst, body, lambda node: _another_on(node, burst, body, pair))


def _another_on(node: str, burst: Burst, body: Instance, pair: Pair) -> Another | None:
    known, options, elsewhere = burst.known, burst.options, node != body.node
    parameter_bytes = known.profile.layers.parameter_bytes(pair.blocks)
    memory_bytes = shadow_memory_bytes(known, options, parameter_bytes, elsewhere=elsewhere)
    if memory_bytes > burst.room.memory_bytes(node):
        return None
    fitting = [cores for cores in known.rates.cores if cores <= burst.room.shadow_cores(node)]
    before_rps = known.rates.rate_rps(body.cores, pair)
    found: list[Another] = []
    for cores in fitting if options.fewer_shadow_cores else fitting[-1:]:
        new = Pair(cores, pair.blocks, (), node if elsewhere else None)
        together_ = known.rates.dealt(body.cores, replace(pair, others=(*pair.others, new)))
        number, rate_with_rps = len(pair.each), known.rates.rate_rps(body.cores, together_)
        timely = [
            efficiency
            for batch, seconds, efficiency in known.pairings.judged(body.cores, together_, number)
            if filling_s(batch, burst.rate_rps) + seconds <= known.rates.slo_s
        ]
        if timely and rate_with_rps > before_rps * (1 + GAIN):
            gain_rps = rate_with_rps - before_rps
            found.append(Another(together_.each[number], number + 1, max(timely), rate_with_rps, gain_rps, memory_bytes))
    return max(found, key=lambda one: one.efficiency, default=None)


def changes(known: Knowledge, bodies: Iterable[Instance], shadows: Iterable[Instance]) -> tuple[ChangeShadow, ...]:
    """Other shares for those that serve, where a batch is quicker so: one has come, or gone."""
    serving = shadows_of(shadow for shadow in shadows if shadow.state is InstanceState.READY)
    changed: list[ChangeShadow] = []
    for body in bodies:
        mine = serving.get(body.id, [])
        now = together([shadow.pair for shadow in mine if shadow.pair is not None])
        if now is None:
            continue
        best = known.rates.dealt(body.cores, now)
        now_s, best_s = known.rates.pair(body.cores, now), known.rates.pair(body.cores, best)
        if now_s is None or best_s is None:
            continue
        if any(taken > least * (1 + WORTH) for taken, least in zip(now_s.latency_s, best_s.latency_s, strict=True)):
            told = zip(mine, now.each, best.each, strict=True)
            changed += [ChangeShadow(shadow.id, after) for shadow, before, after in told if after != before]
    return tuple(changed)
