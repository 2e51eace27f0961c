"""Where a Body's Shadow may be: on its own node as much as possible (section 3.4), else on another with the way priced in.

    own node     any pairing that raises the Body's R_max, fits and is in time: the one of best η
    elsewhere    only where there is none on its own; hand-overs then cost what the profile says of the network

A Body hears of its Shadow from its own node, wherever that is: where none can be made at home, none is asked for elsewhere.
On either it may have the node's reserve and what is free beside it. On its Body's node a Shadow maps weights that the Body holds
already where weights are shared. Elsewhere it brings its blocks.
docs/decisions/0016-shadow-on-another-node.md has worked examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from gnomon_autoscaler.policies.asyfunc.knowledge import Knowledge
from gnomon_autoscaler.policies.asyfunc.model_level import filling_s
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.pairings import Pairing
from gnomon_autoscaler.room import Room
from gnomon_core.fleet import Instance


def best_pairing(known: Knowledge, options: Options, body: Instance, rate_rps: float, room: Room) -> Pairing | None:
    """Lines 6 to 23 for one Body: the pairing of best η that fits a node and whose batch fills and ends in time."""
    burst = Burst(known, options, rate_rps, room)
    return at_home_or_elsewhere(burst, body, lambda node: _best_on(node, body, burst))


class Judged(Protocol):
    """What could be had on a node. η tells which is better."""

    @property
    def efficiency(self) -> float: ...


Found = TypeVar("Found", bound=Judged)


def at_home_or_elsewhere(burst: Burst, body: Instance, best_on: Callable[[str], Found | None]) -> Found | None:
    """The best on a Body's own node; where there is none, that of best η on the other nodes where it may have a Shadow."""
    here = best_on(body.node)
    nobody_tells = not burst.room.makes_shadows(body.node)
    if here is not None or burst.known.pairings_elsewhere is None or not burst.options.other_nodes or nobody_tells:
        return here
    found = [there for node in burst.room.others(body.node) if (there := best_on(node)) is not None]
    # Of nodes that are equally good the roomiest, which was asked first.
    return max(found, key=lambda one: one.efficiency, default=None)


def shadow_memory_bytes(known: Knowledge, options: Options, parameter_bytes: int, *, elsewhere: bool) -> int:
    """What a Shadow with such blocks takes of its node: of shared weights nothing where its Body is, which holds them already."""
    mapped = options.weight_mode == "shared" and not elsewhere
    return known.profile.memory_bytes(0 if mapped else parameter_bytes)


@dataclass(frozen=True, slots=True)
class Burst:
    """What a Shadow is looked for, and what there is for it."""

    known: Knowledge
    options: Options
    rate_rps: float
    room: Room


def _best_on(node: str, body: Instance, burst: Burst) -> Pairing | None:
    known, options, elsewhere = burst.known, burst.options, node != body.node
    pairings = known.pairings_elsewhere if elsewhere else known.pairings
    if pairings is None:
        return None
    fitting = [cores for cores in known.rates.cores if cores <= burst.room.shadow_cores(node)]
    best: Pairing | None = None
    for cores in fitting if options.fewer_shadow_cores else fitting[-1:]:
        for pairing in pairings.ranked(body.cores, cores):
            if best is not None and pairing.efficiency <= best.efficiency:
                break
            timely = filling_s(pairing.batch, burst.rate_rps) + pairing.latency_s <= known.rates.slo_s
            memory_bytes = shadow_memory_bytes(known, options, pairing.parameter_bytes, elsewhere=elsewhere)
            if timely and memory_bytes <= burst.room.memory_bytes(node):
                best = pairing
                break
    return replace(best, pair=replace(best.pair, node=node)) if best is not None and elsewhere else best
