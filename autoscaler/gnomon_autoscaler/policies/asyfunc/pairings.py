"""What each block set would make of a Body and a Shadow: lines 7 to 23 of Algorithm 2, worked out once per pair of core counts.

For every block set Φ and batch b the split b_S is the one that makes the batch quickest (Eq. 6, `gnomon_core.pairs`): the time of
a run depends on nothing but the run, the batch and the split, so that the runs' times are kept and added up. Nothing of this
depends on the load. What does, whether a batch fills in time, is asked of the finished list, best η first.

A set stays in the list only where it raises the Body's R_max: a Shadow that does not is not made, however good its η.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_autoscaler.policies.asyfunc.block_sets import BlockSet, block_sets
from gnomon_autoscaler.policies.asyfunc.efficiency import Efficiency
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.sustained import Rates, Sustained, sustained
from gnomon_core.blocks import Run
from gnomon_core.pairs import Pair, shadow_seconds, together

GAIN = 1e-9
"""Relative: what two sums of the same times may differ by."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """A Shadow for a Body, judged at one batch size: Φ and b of line 16, and what the two sustain with it."""

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
        self._cells = [(batch, there) for batch in range(2, rates.max_batch + 1) for there in range(1, batch)]
        self._bodies_s: dict[tuple[Run, int], tuple[float, ...]] = {}
        self._shadows_s: dict[tuple[Run, int], tuple[float, ...]] = {}
        self._ranked: dict[tuple[int, int], tuple[Pairing, ...]] = {}

    def ranked(self, body_cores: int, shadow_cores: int) -> tuple[Pairing, ...]:
        """Every (Φ, b) that raises the Body's R_max, best η first; of equals fewer blocks and the larger batch first."""
        key = (body_cores, shadow_cores)
        if key not in self._ranked:
            found = self._work_out(body_cores, shadow_cores)
            found.sort(key=lambda pairing: (-pairing.efficiency, len(pairing.pair.blocks), -pairing.batch))
            self._ranked[key] = tuple(found)
        return self._ranked[key]

    def load_s(self, parameter_bytes: int) -> float:
        """From the decision to a Shadow with so many bytes of weights."""
        loading = self._profile.loading
        if self._options.weight_mode in loading:
            return self._profile.shadow_load_s(self._options.weight_mode, parameter_bytes)
        return self._profile.shadow_start_s

    def efficiency(self, body_cores: int, pair: Pair, number: int = 0) -> float:
        """The best η that a Shadow reaches in a timely batch, that of this number among its Body's; 0 where it reaches none."""
        return max([efficiency for _, _, efficiency in self.judged(body_cores, pair, number)], default=0.0)

    def judged(self, body_cores: int, pair: Pair, number: int = 0) -> list[tuple[int, float, float]]:
        """Every timely batch in which this Shadow has a share: the batch, what it takes, and the Shadow's η in it."""
        found = self._rates.pair(body_cores, pair)
        if found is None:
            return []
        each = pair.each
        one, left = each[number], together((*each[:number], *each[number + 1 :]))
        parameter_bytes = self._profile.layers.parameter_bytes(one.blocks)
        gain_rps = found.rate_rps - self._rates.rate_rps(body_cores, left)
        return [
            (batch, seconds, self._judge(there, seconds, gain_rps, one.shadow_cores, parameter_bytes))
            for batch, seconds in enumerate(found.latency_s, start=1)
            if 0.0 < seconds <= self._rates.slo_s and (there := pair.shares(batch)[number]) > 0
        ]

    def _work_out(self, body_cores: int, shadow_cores: int) -> list[Pairing]:
        alone = self._rates.body(body_cores)
        if alone is None or not self._known(body_cores) or not self._known(shadow_cores):
            return []
        if self._sets is None:
            self._sets = block_sets(self._profile.layers, contiguous=self._options.contiguous)
        gains: dict[Run, tuple[float, ...]] = {}
        found: list[Pairing] = []
        for chosen in self._sets:
            for run in chosen.runs:
                if run not in gains:
                    gains[run] = self._gain_s(run, body_cores, shadow_cores)
            changes_s = [sum(cell) for cell in zip(*(gains[run] for run in chosen.runs), strict=True)]
            split, latency_s = self._quickest(alone.latency_s, changes_s)
            together = sustained(latency_s, self._rates.slo_s)
            if together.rate_rps > alone.rate_rps * (1 + GAIN):
                pair = Pair(shadow_cores, chosen.blocks, split)
                found += self._judged(pair, together, chosen, together.rate_rps - alone.rate_rps)
        return found

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

    def _judge(self, there: int, seconds: float, gain_rps: float, cores: int, parameter_bytes: int) -> float:
        """η of a Shadow that takes `there` samples of a batch of so many seconds and raises R_max by `gain_rps`."""
        rate_rps = gain_rps if self._options.gain else there / seconds
        return self._efficiency.of_rate(rate_rps, cores, parameter_bytes)

    def _quickest(self, alone_s: tuple[float, ...], changes_s: list[float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The split of each batch and what it takes then; 0 where no split gains anything."""
        best = [(0.0, 0)] * len(alone_s)
        for (batch, there), change_s in zip(self._cells, changes_s, strict=True):
            if change_s < best[batch - 1][0]:
                best[batch - 1] = (change_s, there)
        split = tuple(there for _, there in best)
        return split, tuple(seconds + change_s for seconds, (change_s, _) in zip(alone_s, best, strict=True))

    def _gain_s(self, run: Run, body_cores: int, shadow_cores: int) -> tuple[float, ...]:
        """By how much each split of each batch changes the batch's latency: the run's term of Eq. 6."""
        alone_s, shadow_s = self._body_s(run, body_cores), self._shadow_s(run, shadow_cores)
        return tuple([max(alone_s[batch - there], shadow_s[there]) - alone_s[batch] for batch, there in self._cells])

    def _body_s(self, run: Run, cores: int) -> tuple[float, ...]:
        """What the Body takes for 0, 1, … B_max samples of a run."""
        key = (run, cores)
        if key not in self._bodies_s:
            seconds = [self._profile.run_seconds(run, cores, samples) for samples in range(self._rates.max_batch + 1)]
            self._bodies_s[key] = tuple([0.0 if each is None else each for each in seconds])
        return self._bodies_s[key]

    def _shadow_s(self, run: Run, cores: int) -> tuple[float, ...]:
        """What the Shadow takes for them, the hand-over included."""
        key = (run, cores)
        if key not in self._shadows_s:
            seconds = [shadow_seconds(self._profile, run, cores, samples) for samples in range(self._rates.max_batch + 1)]
            self._shadows_s[key] = tuple([0.0 if each is None else each for each in seconds])
        return self._shadows_s[key]

    def _known(self, cores: int) -> bool:
        return all(table.at(cores, 1) is not None for table in self._profile.blocks)
