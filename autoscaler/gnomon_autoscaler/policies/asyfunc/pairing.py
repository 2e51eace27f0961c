"""The pairings of a Body and a Shadow by block sets: lines 7 to 23 of Algorithm 2, computed once per pair of core counts.

For every block set Φ and batch b the split b_S is the one with the lowest latency (Eq. 6, `gnomon_core.pairs`). The time of a run
depends only on the run, the batch and the split, so that the runs' times are cached and added up. None of this depends on the
load; the condition that does, that a batch fills in time, is checked on the finished list, best η first.

The list has only sets that raise the Body's R_max: other Shadows are not created, however good their η.

**Block sets** are the layer blocks that a Shadow may hold, the candidates of Algorithm 2 in the order of lines 7 to 9.

    L: candidates by MACs / parameter size, the most first     Φ: the first; the first two; the first three …

Only splittable blocks are candidates. A block without parameters has an infinite ratio, and alone it would need a hand-over for
little work: it is joined with the block before it if that is a candidate, else with the block after it.

A set that grows by ratio is scattered over the model and needs a hand-over for each run of neighbours. A `contiguous` set begins
with the best candidate and adds the better of its two neighbours each time: one hand-over, but a worse ratio.

**Resource efficiency** η: throughput per core plus throughput per unit of memory (line 7 of Algorithm 1, line 15 of Algorithm 2).

    η = n / (c·t) + n / (ρ·m·t)

n is the number of samples that an instance of c cores and memory m computes in t. ρ = MACs / parameter size makes ρ·m a number of
MACs; κ is the price of a GMAC in cores, so that the two terms have the same unit:

    ρ·m = κ · GMACs of the model · m / size of its parameters

κ₀ follows from the profile (`calibrated`): the cores that execute a GMAC within the objective. With κ₀, c and ρ·m both count
cores that are busy for the time of one objective, so that the result is independent of the units.

Example: a model of 4 GMACs and 100 MB, κ = κ₀ = 1: an instance that holds 150 MB is worth 6 cores. With 2 cores and 8 samples in
0.5 s, η = 8 / (2 · 0.5) + 8 / (6 · 0.5) = 10.67.

**Price of memory.** A function may set another κ than κ₀. As printed, a higher κ makes the second term smaller: the more
expensive memory is, the less throughput per memory counts, and many small Bodies with their own copies of the model are
preferred. Here κ / κ₀ is the weight of that term, so that a higher price never increases memory use; with κ₀ both are equal.

    η = n / (c·t) + κ/κ₀ · n / (ρ₀·m·t)        printed_kappa: η = n / (c·t) + n / (ρ·m·t)

Example: the same instance with κ = 4: η = 8 + 4 · 2.67 = 18.67; as printed, 24 cores' worth of memory, 8 + 0.67 = 8.67.

The sum is the paper's heuristic for its objective, to serve the rate with the least Σ(c + ρ·m); the option `objective` ranks by
that objective, n / ((c + ρ·m)·t). The two orders may differ: docs/decisions/0011-mls.md.

**Capacity** R_max is the rate that Bodies sustain within the objective, with or without their Shadows (Eq. 1).

    R_max = Σ over Bodies of max over b ≤ B_max of b / t_l(b),  with t_l(b) ≤ t_SLO

The printed condition is on the queueing time, t_q ≤ t_SLO, which every b fulfils as t_q approaches zero. Eq. 3 has the condition
on t_l, which is used here. If no batch of a Body meets the objective, its R_max is 0 and it ends first. If that holds for every
number of cores, no configuration would ever suffice: the objective is out of reach, and a Body counts with its rate for batches
of one.

**Knowledge** is the cache of everything that follows from a model's profile and the function's settings alone.

A policy is called several times a second and has milliseconds, but a profile of 60 blocks has thousands of latencies. The cached
values are a pure function of the profile: dropping them changes only the time of the next decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_core.blocks import Layers, Run
from gnomon_core.pairs import Pair, best_splits, pair_seconds, shadow_seconds, together
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import Observation
from gnomon_core.settings import Settings


@dataclass(frozen=True, slots=True)
class BlockSet:
    """A set of blocks that a Shadow may hold."""

    blocks: tuple[int, ...]
    runs: tuple[Run, ...]
    parameter_bytes: int


def block_sets(layers: Layers, *, contiguous: bool = False) -> tuple[BlockSet, ...]:
    """Φ as it grows, from one candidate to all; empty where no block can be split."""
    groups = candidates(layers)
    order = _by_neighbour(layers, groups) if contiguous else _by_ratio(layers, groups)
    sets: list[BlockSet] = []
    chosen: list[int] = []
    made_runs: dict[tuple[int, int], Run] = {}
    for group in order:
        chosen += group
        blocks = tuple(sorted(chosen))
        sets.append(BlockSet(blocks, _runs(layers, blocks, made_runs), layers.parameter_bytes(blocks)))
    return tuple(sets)


def _runs(layers: Layers, blocks: Sequence[int], made_runs: dict[tuple[int, int], Run]) -> tuple[Run, ...]:
    """`layers.runs(blocks)`; `made_runs` has the runs of earlier sets, which are not made again."""
    ends = [number for number, after in pairwise((*blocks, -1)) if after != number + 1]
    begins = [number for before, number in pairwise((-2, *blocks)) if number != before + 1]
    runs: list[Run] = []
    for first, last in zip(begins, ends, strict=True):
        if (first, last) not in made_runs:
            made_runs[first, last] = layers.runs(range(first, last + 1))[0]
        runs.append(made_runs[first, last])
    return tuple(runs)


def candidates(layers: Layers) -> list[tuple[int, ...]]:
    """The candidates in the model's order, each a block and the neighbours without parameters that joined it.

    Example: parameters 0, 5, 0, 0, 7 with all splittable: (0, 1, 2, 3) and (4,).
    """
    groups: list[list[int]] = []
    for number, block in enumerate(layers.blocks):
        if not block.splittable:
            continue
        joins = bool(groups) and groups[-1][-1] == number - 1 and (not block.parameter_bytes or not _weighs(layers, groups[-1]))
        if joins:
            groups[-1].append(number)
        else:
            groups.append([number])
    return [tuple(group) for group in groups if _weighs(layers, group)]


def _weighs(layers: Layers, group: Sequence[int]) -> bool:
    return layers.parameter_bytes(group) > 0


def _ratio(layers: Layers, group: Sequence[int]) -> float:
    return layers.macs(group) / layers.parameter_bytes(group)


def _by_ratio(layers: Layers, groups: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return sorted(groups, key=lambda group: (-_ratio(layers, group), group[0]))


def _by_neighbour(layers: Layers, groups: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    if not groups:
        return
    # Groups that touch form one run, which needs one hand-over only.
    joined = {left[-1] for left, right in pairwise(groups) if right[0] == left[-1] + 1}
    best = groups.index(_by_ratio(layers, groups)[0])
    first = last = best
    yield groups[best]
    while True:
        before = first - 1 if first > 0 and groups[first - 1][-1] in joined else None
        after = last + 1 if groups[last][-1] in joined else None
        either = [number for number in (before, after) if number is not None]
        if not either:
            return
        chosen = max(either, key=lambda number: (_ratio(layers, groups[number]), -number))
        first, last = min(first, chosen), max(last, chosen)
        yield groups[chosen]


GIGA = 1e9


def calibrated(profile: ModelProfile, slo_s: float) -> float:
    """κ in cores per GMAC: core-seconds that the profile's machine takes for a GMAC, by the objective; 0 without MACs.

    Example: 0.025 core-seconds per GMAC and an SLO of 0.5 s make 0.05 cores per GMAC: ρ·m of a 4 GMAC model is 0.2 cores.
    """
    return profile.core_seconds_per_gmac() / slo_s


@dataclass(frozen=True, slots=True)
class Efficiency:
    """η for one model.

    `cores_per_byte` is κ·ρ: how many cores a byte of memory is worth. `weight` is that of throughput per memory.
    """

    profile: ModelProfile
    cores_per_byte: float
    overhead_counts: bool = True
    objective: bool = False
    weight: float = 1.0

    @staticmethod
    def of(profile: ModelProfile, slo_s: float, options: Options) -> Efficiency:
        """η with ρ of the model's layers and κ cores per GMAC. Memory costs nothing where a model has no parameters."""
        calibrated_kappa = calibrated(profile, slo_s)
        kappa, weight = calibrated_kappa if options.kappa is None else options.kappa, 1.0
        if calibrated_kappa > 0.0 and not (options.printed_kappa or options.objective):
            kappa, weight = calibrated_kappa, kappa / calibrated_kappa
        parameter_bytes = profile.layers.parameter_bytes()
        cores_per_byte = kappa * profile.layers.macs() / GIGA / parameter_bytes if parameter_bytes else 0.0
        return Efficiency(profile, cores_per_byte, options.overhead_counts, options.objective, weight)

    def memory_cores(self, parameter_bytes: int) -> float:
        """ρ·m of an instance with so many bytes of weights, in cores."""
        held_bytes = self.profile.memory_bytes(parameter_bytes) if self.overhead_counts else parameter_bytes
        return self.cores_per_byte * held_bytes

    def at(self, samples: int, seconds: float, cores: int, parameter_bytes: int) -> float:
        """η of an instance with these cores and weights that computes `samples` in `seconds`."""
        return self.of_rate(samples / seconds, cores, parameter_bytes)

    def of_rate(self, rate_rps: float, cores: int, *parameter_bytes: int) -> float:
        """η of a throughput by instances with these cores in total, each with its bytes of weights."""
        memory_cores = sum(self.memory_cores(each) for each in parameter_bytes)
        if self.objective:
            return rate_rps / (cores + memory_cores)
        return rate_rps / cores + (self.weight * rate_rps / memory_cores if memory_cores else 0.0)


KEPT_PAIRS = 4096


@dataclass(frozen=True, slots=True)
class Sustained:
    """The latencies of batches of 1, 2, … B_max, and the highest rate with its batch; 0 and 0 if no batch is timely."""

    latency_s: tuple[float, ...]
    rate_rps: float
    batch: int


def sustained(latency_s: Sequence[float], slo_s: float) -> Sustained:
    """Eq. 1 for one Body. Every batch is considered: on a CPU, throughput need not rise with the batch.

    Example: 0.2, 0.25, 0.45, 0.5 s for 1 … 4 samples within 0.45 s: 5, 8, 6.67 and (not timely) 8: 8 rps with batches of 2.
    """
    timely = [(size / seconds, size) for size, seconds in enumerate(latency_s, start=1) if 0.0 < seconds <= slo_s]
    rate_rps, batch = max(timely, key=lambda entry: entry[0], default=(0.0, 0))
    return Sustained(tuple(latency_s), rate_rps, batch)


class Rates:
    """Sustained rates (requests/s) of Bodies and pairs of one model, each computed once: a profile is immutable."""

    def __init__(self, profile: ModelProfile, slo_s: float, max_batch: int, max_cores: int) -> None:
        self.profile = profile
        self.slo_s = slo_s
        self.max_batch = max_batch
        self._pairs: dict[tuple[int, Pair], Sustained] = {}
        self._bodies: dict[int, Sustained | None] = {}
        self._splits: dict[tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], ...]] = {}
        self.out_of_reach = False
        """True if no number of cores meets the objective."""
        self.cores = tuple(cores for cores in range(1, max_cores + 1) if self._measured(cores) is not None)
        """Numbers of cores that a Body or Shadow may have: up to C_max, as far as the profile goes."""
        # Known only after all numbers of cores were measured; the cached rates depend on it, so they are computed again.
        self.out_of_reach = not any(rate.batch for rate in map(self.body, self.cores) if rate is not None)
        self._bodies.clear()

    def body(self, cores: int) -> Sustained | None:
        """A Body alone; None where the profile does not know its cores."""
        if cores not in self._bodies:
            self._bodies[cores] = self._measured(cores)
        return self._bodies[cores]

    def pair(self, body_cores: int, pair: Pair) -> Sustained | None:
        """A Body with its Shadows; None where the profile does not know their cores, or the network's price."""
        cached = self._pairs.get((body_cores, pair))
        if cached is not None:
            return cached
        runs = self.profile.layers.runs(pair.blocks)
        latency_s = []
        for batch in range(1, self.max_batch + 1):
            seconds = pair_seconds(self.profile, body_cores, pair, batch, runs)
            if seconds is None:
                return None
            latency_s.append(seconds)
        # Pairs change with the load, so that an unlimited cache would grow without bound.
        if len(self._pairs) >= KEPT_PAIRS:
            self._pairs.clear()
        computed = self._pairs[body_cores, pair] = self._sustained(latency_s)
        return computed

    def dealt(self, body_cores: int, pair: Pair) -> Pair:
        """The pair with the same Shadows, and the shares that make each batch quickest."""
        key = (body_cores, pair.cores, pair.blocks, pair.elsewhere)
        splits = self._splits.get(key)
        if splits is None:
            if len(self._splits) >= KEPT_PAIRS:
                self._splits.clear()
            cores = (body_cores, *pair.cores)
            splits = best_splits(self.profile, cores, pair.blocks, self.max_batch, elsewhere=pair.elsewhere)
            self._splits[key] = splits
        first, *others = (replace(shadow, split=split) for shadow, split in zip(pair.each, splits, strict=True))
        return replace(first, others=tuple(others))

    def rate_rps(self, body_cores: int, pair: Pair | None = None) -> float:
        """R_max of one Body; 0 where nothing is known of it."""
        sustained_rate = self.body(body_cores) if pair is None else self.pair(body_cores, pair)
        return sustained_rate.rate_rps if sustained_rate is not None else 0.0

    def _measured(self, cores: int) -> Sustained | None:
        latency_s = [self.profile.whole.at(cores, batch) for batch in range(1, self.max_batch + 1)]
        measured = [seconds for seconds in latency_s if seconds is not None]
        return self._sustained(measured) if len(measured) == len(latency_s) else None

    def _sustained(self, latency_s: Sequence[float]) -> Sustained:
        sustained_rate = sustained(latency_s, self.slo_s)
        if not sustained_rate.batch and self.out_of_reach and latency_s[0] > 0:
            return Sustained(sustained_rate.latency_s, 1 / latency_s[0], 1)
        return sustained_rate


GAIN = 1e-9
"""The relative rounding error of sums of the same times."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """A Shadow for a Body, evaluated at one batch size: Φ and b of line 16, and the rate that both sustain."""

    efficiency: float
    batch: int
    latency_s: float
    pair: Pair
    parameter_bytes: int
    rate_rps: float


class Pairings:
    """The pairings of one model, by the cores of Body and Shadow."""

    def __init__(self, rates: Rates, efficiency: Efficiency, options: Options) -> None:
        self._rates = rates
        self._profile = rates.profile
        self._efficiency = efficiency
        self._options = options
        self._sets: tuple[BlockSet, ...] | None = None
        self._cells = [(batch, shadow_samples) for batch in range(2, rates.max_batch + 1) for shadow_samples in range(1, batch)]
        self._bodies_s: dict[tuple[Run, int], tuple[float, ...]] = {}
        self._shadows_s: dict[tuple[Run, int], tuple[float, ...]] = {}
        self._ranked: dict[tuple[int, int], tuple[Pairing, ...]] = {}

    def ranked(self, body_cores: int, shadow_cores: int) -> tuple[Pairing, ...]:
        """Every (Φ, b) that raises the Body's R_max, best η first; of equals fewer blocks and the larger batch first."""
        key = (body_cores, shadow_cores)
        if key not in self._ranked:
            ranked_pairings = self._work_out(body_cores, shadow_cores)
            ranked_pairings.sort(key=lambda pairing: (-pairing.efficiency, len(pairing.pair.blocks), -pairing.batch))
            self._ranked[key] = tuple(ranked_pairings)
        return self._ranked[key]

    def load_s(self, parameter_bytes: int) -> float:
        """The time in seconds from the decision until a Shadow has loaded this many bytes of weights."""
        loading = self._profile.loading
        if self._options.weight_mode in loading:
            return self._profile.shadow_load_s(self._options.weight_mode, parameter_bytes)
        return self._profile.shadow_start_s

    def efficiency(self, body_cores: int, pair: Pair, number: int = 0) -> float:
        """The best η that a Shadow reaches in a timely batch, that of this number among its Body's; 0 where it reaches none."""
        return max([efficiency for _, _, efficiency in self.judged(body_cores, pair, number)], default=0.0)

    def judged(self, body_cores: int, pair: Pair, number: int = 0) -> list[tuple[int, float, float]]:
        """Every timely batch in which this Shadow has a share: the batch, its seconds, and the Shadow's η in it."""
        sustained_rate = self._rates.pair(body_cores, pair)
        if sustained_rate is None:
            return []
        each = pair.each
        shadow, without_shadow = each[number], together((*each[:number], *each[number + 1 :]))
        parameter_bytes = self._profile.layers.parameter_bytes(shadow.blocks)
        gain_rps = sustained_rate.rate_rps - self._rates.rate_rps(body_cores, without_shadow)
        return [
            (batch, seconds, self._judge(shadow_samples, seconds, gain_rps, shadow.shadow_cores, parameter_bytes))
            for batch, seconds in enumerate(sustained_rate.latency_s, start=1)
            if 0.0 < seconds <= self._rates.slo_s and (shadow_samples := pair.shares(batch)[number]) > 0
        ]

    def _work_out(self, body_cores: int, shadow_cores: int) -> list[Pairing]:
        alone = self._rates.body(body_cores)
        if alone is None or not self._known(body_cores) or not self._known(shadow_cores):
            return []
        if self._sets is None:
            self._sets = block_sets(self._profile.layers, contiguous=self._options.contiguous)
        gains: dict[Run, tuple[float, ...]] = {}
        pairings: list[Pairing] = []
        for chosen in self._sets:
            for run in chosen.runs:
                if run not in gains:
                    gains[run] = self._gain_s(run, body_cores, shadow_cores)
            changes_s = [sum(cell) for cell in zip(*(gains[run] for run in chosen.runs), strict=True)]
            split, latency_s = self._quickest(alone.latency_s, changes_s)
            together = sustained(latency_s, self._rates.slo_s)
            if together.rate_rps > alone.rate_rps * (1 + GAIN):
                pair = Pair(shadow_cores, chosen.blocks, split)
                pairings += self._judged(pair, together, chosen, together.rate_rps - alone.rate_rps)
        return pairings

    def _judged(self, pair: Pair, together: Sustained, chosen: BlockSet, gain_rps: float) -> list[Pairing]:
        load_s = self.load_s(chosen.parameter_bytes) if self._options.load_counts else 0.0
        slo_s = self._rates.slo_s
        return [
            Pairing(
                self._judge(pair.split[batch - 1], seconds, gain_rps, pair.shadow_cores, chosen.parameter_bytes),
                batch,
                seconds,
                pair,
                chosen.parameter_bytes,
                together.rate_rps,
            )
            for batch, seconds in enumerate(together.latency_s, start=1)
            if pair.split[batch - 1] and seconds > 0.0 and load_s + seconds <= slo_s
        ]

    def _judge(self, shadow_samples: int, seconds: float, gain_rps: float, cores: int, parameter_bytes: int) -> float:
        """η of a Shadow that takes `shadow_samples` of a batch of so many seconds and raises R_max by `gain_rps`."""
        rate_rps = gain_rps if self._options.gain else shadow_samples / seconds
        return self._efficiency.of_rate(rate_rps, cores, parameter_bytes)

    def _quickest(self, alone_s: tuple[float, ...], changes_s: list[float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The split of each batch and its seconds with that split; a split of 0 where none gains anything."""
        best = [(0.0, 0)] * len(alone_s)
        for (batch, shadow_samples), change_s in zip(self._cells, changes_s, strict=True):
            if change_s < best[batch - 1][0]:
                best[batch - 1] = (change_s, shadow_samples)
        split = tuple(shadow_samples for _, shadow_samples in best)
        return split, tuple(seconds + change_s for seconds, (change_s, _) in zip(alone_s, best, strict=True))

    def _gain_s(self, run: Run, body_cores: int, shadow_cores: int) -> tuple[float, ...]:
        """The change of the batch's latency by each split of each batch: the run's term of Eq. 6."""
        alone_s, shadow_s = self._body_s(run, body_cores), self._shadow_s(run, shadow_cores)
        return tuple(
            [
                max(alone_s[batch - shadow_samples], shadow_s[shadow_samples]) - alone_s[batch]
                for batch, shadow_samples in self._cells
            ]
        )

    def _body_s(self, run: Run, cores: int) -> tuple[float, ...]:
        """Seconds of a Body for 0, 1, … B_max samples of a run."""
        key = (run, cores)
        if key not in self._bodies_s:
            seconds = [self._profile.run_seconds(run, cores, samples) for samples in range(self._rates.max_batch + 1)]
            self._bodies_s[key] = tuple([0.0 if each is None else each for each in seconds])
        return self._bodies_s[key]

    def _shadow_s(self, run: Run, cores: int) -> tuple[float, ...]:
        """Seconds of a Shadow for 0, 1, … B_max samples of a run, the hand-over included."""
        key = (run, cores)
        if key not in self._shadows_s:
            seconds = [shadow_seconds(self._profile, run, cores, samples) for samples in range(self._rates.max_batch + 1)]
            self._shadows_s[key] = tuple([0.0 if each is None else each for each in seconds])
        return self._shadows_s[key]

    def _known(self, cores: int) -> bool:
        return all(table.at(cores, 1) is not None for table in self._profile.blocks)


class Knowledge:
    """Rates, η and pairings that follow from one profile under one objective."""

    def __init__(self, profile: ModelProfile, settings: Settings, options: Options) -> None:
        self.profile = profile
        self.rates = Rates(profile, settings.slo_s, settings.max_batch, settings.max_cores)
        self.kappa = calibrated(profile, settings.slo_s) if options.kappa is None else options.kappa
        self.efficiency = Efficiency.of(profile, settings.slo_s, options)
        self.pairings = Pairings(self.rates, self.efficiency, options)
        distant = profile.over_network()
        self.pairings_elsewhere = None if distant is None else self._pairings(distant, settings, options)
        """Pairings with the Shadow on another node; None where hand-overs over the network have no price."""
        self.parameter_bytes = profile.layers.parameter_bytes()

    def _pairings(self, profile: ModelProfile, settings: Settings, options: Options) -> Pairings:
        rates = Rates(profile, settings.slo_s, settings.max_batch, settings.max_cores)
        return Pairings(rates, self.efficiency, options)


class KnowledgeCache:
    """Cache of the `Knowledge` about the observed function; recomputed when its profile or settings change."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._last: Knowledge | None = None
        self._settings: Settings | None = None

    def of(self, observation: Observation) -> Knowledge | None:
        """The knowledge from the profile; None without one, or if it covers no number of cores that the function may have."""
        return self.known(observation.profile, observation.settings)

    def known(self, profile: ModelProfile | None, settings: Settings) -> Knowledge | None:
        """The knowledge from a profile and settings; None as for `of`."""
        if profile is None:
            return None
        last = self._last
        # A comparison takes field after field: most often it is the same object.
        same_settings = settings is self._settings or settings == self._settings
        if last is None or not same_settings or not (profile is last.profile or profile == last.profile):
            last = Knowledge(profile, settings, self._options)
            self._last, self._settings = last, settings
        return last if last.rates.cores else None
