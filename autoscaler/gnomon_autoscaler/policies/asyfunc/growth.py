"""A Body that grows: free cores of its node go to itself for a burst, in place of a Shadow, and are given back afterwards.

    shadow    cores for a burst make a Shadow (AsyFunc)
    resize    … make the Body larger: no loading and no hand-over, but only as much quicker as the model is parallel
    either    … whichever has the higher η

The two are compared as wholes, by line 7 of Algorithm 1: Body and Shadow hold c_B + c_S cores and m + m_Φ, the larger Body has
c cores and m. Line 15 judges a Shadow by itself; cores without memory would have an infinite η there.

Which Bodies have grown, and from how many cores, is remembered, and when more were asked for: a pod has them once its kubelet has
come to it, and until then they count as Shadows do that load. What a Body was asked to grow by and is not on its way was refused:
it gets a Shadow then, where it may have one. Model-level scaling sees Bodies as they were, as it sees pairs
without their Shadows: else a long burst never gets a Body.
docs/decisions/0015-promotion-and-resizing.md has examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gnomon_autoscaler.counting import Memory, goes_on, moment
from gnomon_autoscaler.policies.asyfunc.knowledge import Knowledge
from gnomon_autoscaler.policies.asyfunc.model_level import Configuration, best_batch
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.pairings import GAIN, Pairing
from gnomon_autoscaler.room import Room
from gnomon_core.fleet import Instance
from gnomon_core.pairs import Pair
from gnomon_core.scaling import Observation, Resize, StateValue

ARRIVES_WITHIN_S = 30.0
"""A kubelet gives a pod other cores within seconds, if its node has them. What has not come by then is taken back."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How many cores a Body had before it grew, and when more were asked for; None once it is to have no more than those."""

    before: int
    asked_at_s: float | None


Grown = Mapping[str, int]
"""How many cores each Body had before it grew, by its id."""


def best_growth(known: Knowledge, options: Options, body: Instance, rate_rps: float, room: Room) -> Configuration | None:
    """What the Body could be on its node now: best η, in time at this rate, and sustaining more than it does; None if nothing.

    Like a Shadow it takes min(free, C_max) cores, or as many of them as are best where `fewer_shadow_cores` says so; but none of
    those that its node holds for Shadows.
    """
    most = body.cores + room.cores(body.node)
    larger = [cores for cores in known.rates.cores if body.cores < cores <= most]
    found = [best_batch(known, cores, rate_rps) for cores in (larger if options.fewer_shadow_cores else larger[-1:])]
    enough_rps = known.rates.rate_rps(body.cores) * (1 + GAIN)
    helpful = [each for each in found if each is not None and each.rate_rps > enough_rps]
    return max(helpful, key=lambda each: (each.efficiency, -each.cores), default=None)


def pair_efficiency(known: Knowledge, body: Instance, chosen: Pairing) -> float:
    """η of a Body together with the Shadow that it would have, in the batch that the Shadow was chosen for."""
    cores = body.cores + chosen.pair.shadow_cores
    return known.efficiency.of_rate(chosen.batch / chosen.latency_s, cores, known.parameter_bytes, chosen.parameter_bytes)


def whole_efficiency(known: Knowledge, body: Instance, pair: Pair | None) -> float:
    """η of a Body, with its Shadow if it has one, at the rate that it sustains."""
    rate_rps = known.rates.rate_rps(body.cores, pair)
    if pair is None:
        return known.efficiency.of_rate(rate_rps, body.cores, known.parameter_bytes)
    held = [known.profile.layers.parameter_bytes(one.blocks) for one in pair.each]
    return known.efficiency.of_rate(rate_rps, body.cores + sum(pair.cores), known.parameter_bytes, *held)


def growths_in(memory: Memory, seen: Observation) -> dict[str, Growth]:
    """The Bodies that live and have grown or are about to, as the last decision remembered them.

    One that is to have no more than it had, and has no more, is as it was.
    """
    entries = memory.get("grown")
    read = {name: _growth(entry) for name, entry in entries.items()} if isinstance(entries, Mapping) else {}
    there = [(body, growth) for body in seen.live if (growth := read.get(body.id)) is not None]
    return {body.id: growth for body, growth in there if growth.asked_at_s is not None or body.cores > growth.before}


def _growth(entry: StateValue) -> Growth | None:
    if not isinstance(entry, Mapping):
        return None
    before = entry.get("before")
    return Growth(before, moment(entry, "asked_at_s")) if isinstance(before, int) else None


def cores_before(growths: Mapping[str, Growth]) -> Grown:
    """What each had before it grew."""
    return {name: growth.before for name, growth in growths.items()}


def as_they_will_be(bodies: Iterable[Instance]) -> tuple[Instance, ...]:
    """The same with the cores that are on their way, which are counted on as Shadows that load are.

    A kubelet takes about a second, and a burst is looked at twice in that time: the second look would ask other Bodies as well.
    """
    return tuple(
        body if body.coming_cores is None else replace(body, cores=body.given_cores, coming_cores=None) for body in bodies
    )


def refused(growths: Mapping[str, Growth], seen: Observation) -> set[str]:
    """The Bodies that were to have more cores, and neither have them nor are about to."""
    given = {body.id: body.given_cores for body in seen.live}
    return {name for name, growth in growths.items() if growth.asked_at_s is not None and given[name] <= growth.before}


def returning(growths: Mapping[str, Growth], seen: Observation) -> set[str]:
    """The Bodies whose cores are on their way back."""
    coming = {body.id: body.coming_cores for body in seen.live}
    return {name for name, growth in growths.items() if (cores := coming[name]) is not None and cores <= growth.before}


def overdue(growths: Mapping[str, Growth], seen: Observation) -> tuple[Resize, ...]:
    """What ends the wait for cores that have not come: they might come when nobody needs them."""
    cores = {body.id: body.cores for body in seen.live}
    return tuple(
        Resize(name, growth.before)
        for name, growth in sorted(growths.items())
        if growth.asked_at_s is not None
        and cores[name] <= growth.before
        and not goes_on(growth.asked_at_s, ARRIVES_WITHIN_S, seen.now_s)
    )


def grown_after(
    growths: Mapping[str, Growth], resized: Iterable[Resize], seen: Observation, ending: set[str]
) -> dict[str, StateValue]:
    """What to remember once these actions have been carried out, or are on their way."""
    cores = {body.id: body.cores for body in seen.live}
    after, anew = dict(growths), refused(growths, seen)
    for action in resized:
        growth = after.get(action.id, Growth(cores[action.id], None))
        # What was refused is not on its way since then: what is asked for now may be.
        first_s = seen.now_s if growth.asked_at_s is None or action.id in anew else growth.asked_at_s
        after[action.id] = replace(growth, asked_at_s=first_s if action.cores > growth.before else None)
    return {
        name: {"before": growth.before, "asked_at_s": growth.asked_at_s}
        for name, growth in sorted(after.items())
        if name not in ending
    }


def as_they_were(seen: Observation, grown: Grown) -> Observation:
    """The same with every Body as large as it was before it grew."""
    if not grown:
        return seen
    instances = tuple(replace(one, cores=grown.get(one.id, one.cores)) for one in seen.instances)
    return replace(seen, instances=instances)


def given_back(grown: Grown) -> tuple[Resize, ...]:
    """Every Body as large as it was."""
    return tuple(Resize(name, before) for name, before in sorted(grown.items()))
