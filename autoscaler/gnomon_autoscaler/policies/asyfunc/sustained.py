"""R_max: the rate that Bodies sustain within the objective, with their Shadows or without (Eq. 1).

    R_max = Σ over Bodies of max over b ≤ B_max of b / t_l(b),  with t_l(b) ≤ t_SLO

The printed condition is on the queueing time, t_q ≤ t_SLO, which every b fulfils as t_q approaches zero; Eq. 3 has it on t_l, and
so has this. Where no batch of a Body meets the objective, the Body sustains nothing: it is the first to go. Where that is so on
any number of cores, no configuration would ever be enough; then the objective is out of reach, and a Body counts with what it
serves one by one, late as that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gnomon_core.pairs import Pair, best_splits, pair_seconds
from gnomon_core.profiles import ModelProfile

KEPT_PAIRS = 4096


@dataclass(frozen=True, slots=True)
class Sustained:
    """Latencies of batches of 1, 2, … B_max, and the highest rate with the batch that gives it. 0 and 0 where none is timely."""

    latency_s: tuple[float, ...]
    rate_rps: float
    batch: int


def sustained(latency_s: Sequence[float], slo_s: float) -> Sustained:
    """Eq. 1 for one Body. Every batch is looked at: on a CPU, throughput need not rise with the batch.

    Example: 0.2, 0.25, 0.45, 0.5 s for 1 … 4 samples within 0.45 s: 5, 8, 6.67 and (not timely) 8: 8 rps with batches of 2.
    """
    timely = [(size / seconds, size) for size, seconds in enumerate(latency_s, start=1) if 0.0 < seconds <= slo_s]
    rate_rps, batch = max(timely, key=lambda entry: entry[0], default=(0.0, 0))
    return Sustained(tuple(latency_s), rate_rps, batch)


class Rates:
    """What Bodies and pairs of one model sustain. Each is computed once: a profile is a value."""

    def __init__(self, profile: ModelProfile, slo_s: float, max_batch: int, max_cores: int) -> None:
        self.profile = profile
        self.slo_s = slo_s
        self.max_batch = max_batch
        self._pairs: dict[tuple[int, Pair], Sustained] = {}
        self._bodies: dict[int, Sustained | None] = {}
        self._splits: dict[tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], ...]] = {}
        self.out_of_reach = False
        """Whether no number of cores meets the objective."""
        self.cores = tuple(cores for cores in range(1, max_cores + 1) if self._measured(cores) is not None)
        """What a Body or Shadow may have: up to C_max, as far as the profile goes."""
        self.out_of_reach = not any(found.batch for found in map(self.body, self.cores) if found is not None)
        self._bodies.clear()

    def body(self, cores: int) -> Sustained | None:
        """A Body alone; None where the profile does not know its cores."""
        if cores not in self._bodies:
            self._bodies[cores] = self._measured(cores)
        return self._bodies[cores]

    def pair(self, body_cores: int, pair: Pair) -> Sustained | None:
        """A Body with its Shadows; None where the profile does not know their cores, or the network's price."""
        known = self._pairs.get((body_cores, pair))
        if known is not None:
            return known
        runs = self.profile.layers.runs(pair.blocks)
        latency_s = []
        for batch in range(1, self.max_batch + 1):
            seconds = pair_seconds(self.profile, body_cores, pair, batch, runs)
            if seconds is None:
                return None
            latency_s.append(seconds)
        if len(self._pairs) >= KEPT_PAIRS:
            self._pairs.clear()
        found = self._pairs[body_cores, pair] = self._sustained(latency_s)
        return found

    def dealt(self, body_cores: int, pair: Pair) -> Pair:
        """The same Shadows, with the shares that make each batch quickest."""
        key = (body_cores, pair.cores, pair.blocks, pair.elsewhere)
        splits = self._splits.get(key)
        if splits is None:
            if len(self._splits) >= KEPT_PAIRS:
                self._splits.clear()
            cores = (body_cores, *pair.cores)
            splits = best_splits(self.profile, cores, pair.blocks, self.max_batch, elsewhere=pair.elsewhere)
            self._splits[key] = splits
        first, *others = (replace(one, split=split) for one, split in zip(pair.each, splits, strict=True))
        return replace(first, others=tuple(others))

    def rate_rps(self, body_cores: int, pair: Pair | None = None) -> float:
        """R_max of one Body; 0 where nothing is known of it."""
        found = self.body(body_cores) if pair is None else self.pair(body_cores, pair)
        return found.rate_rps if found is not None else 0.0

    def _measured(self, cores: int) -> Sustained | None:
        latency_s = [self.profile.whole.at(cores, batch) for batch in range(1, self.max_batch + 1)]
        known = [seconds for seconds in latency_s if seconds is not None]
        return self._sustained(known) if len(known) == len(latency_s) else None

    def _sustained(self, latency_s: Sequence[float]) -> Sustained:
        found = sustained(latency_s, self.slo_s)
        if not found.batch and self.out_of_reach and latency_s[0] > 0:
            return Sustained(found.latency_s, 1 / latency_s[0], 1)
        return found
